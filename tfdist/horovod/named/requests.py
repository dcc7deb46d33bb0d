"""Requests: the description of an operation that ranks exchange and compare before it is executed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

Kind = Literal[
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "process set", "given up"
]
_ROWS = ("allgather", "alltoall")  # the first dimension may differ between ranks
_REDUCED = ("allreduce", "reducescatter")
_JOINED = ("Average", "Sum")  # a rank that has joined takes part without data


@dataclasses.dataclass(frozen=True)
class Request:
    """One rank's description of an operation.

    Attributes:
      kind: kind of operation.
      name: name by which the ranks match their operations.
      tensors: dtype and shape of each tensor; the first dimension is None where it may differ.
      op: name of a ``ReduceOp``; what changes, for process sets; empty for other operations.
      root: rank in the job that has the values; None for operations without a root.
      scales: factors before and after the reduction.
      error: error message about this rank's own arguments; empty if they are right.
      in_graph: whether a graph has begun it; the graph's run ends when one of its operations fails.
    """

    kind: Kind
    name: str
    tensors: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    op: str = ""
    root: int | None = None
    scales: tuple[float, float] = (1.0, 1.0)
    error: str = ""
    in_graph: bool = dataclasses.field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    def facts(self) -> list[str]:
        """Return what must be equal on all ranks, in words."""
        facts = [f"the operation {self.kind}", f"{len(self.tensors)} tensors"]
        for dtype, shape in self.tensors:
            rows = ", ".join("rows" if size is None else str(size) for size in shape)
            facts += [f"dtype {dtype}", f"shape [{rows}]"]
        return [*facts, f"op {self.op}", f"root rank {self.root}", f"prescale and postscale factors {self.scales}"]


def tensors_of(kind: Kind, arrays: Sequence[np.ndarray]) -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    """Return a request's ``tensors`` for the arrays of a rank."""
    shapes = [(None, *a.shape[1:]) if kind in _ROWS and a.ndim else a.shape for a in arrays]
    return tuple((array.dtype.name, shape) for array, shape in zip(arrays, shapes, strict=True))


def check(of_ranks: Mapping[int, Request], ranks: Sequence[int], joined: Sequence[int]) -> None:
    """Check that the ranks' requests of one name can be executed together.

    Args:
      of_ranks: requests by index in the process set, in the order of the ranks.
      ranks: ranks in the job, by index in the process set.
      joined: indices of ranks that have joined and take part without data.

    Raises:
      tf.errors.InvalidArgumentError: a rank's arguments are wrong, or those of all ranks.
      tf.errors.FailedPreconditionError: the requests differ, or the operation needs the data of ranks that have joined.
    """
    first_rank, first = next(iter(of_ranks.items()))
    for rank, other in of_ranks.items():
        if other.error:
            raise tf.errors.InvalidArgumentError(None, None, f"{first}: rank {ranks[rank]}: {other.error}")
    for rank, other in of_ranks.items():
        for own, theirs in itertools.zip_longest(first.facts(), other.facts()):
            if own != theirs:
                said = f"{first}: rank {ranks[first_rank]} has {own}, but rank {ranks[rank]} {theirs}"
                raise tf.errors.FailedPreconditionError(None, None, said)
    wrong = _wrong(first, ranks)
    if wrong:
        raise tf.errors.InvalidArgumentError(None, None, f"{first}: {wrong}")
    if joined and (first.kind != "allreduce" or first.op not in _JOINED):
        said = (
            f"{first}{f' ({first.op})' if first.op else ''} cannot be done without rank "
            f"{', '.join(str(ranks[r]) for r in joined)}, which has called join(). Only sums and averages by allreduce "
            "can do without the data of a joined rank"
        )
        raise tf.errors.FailedPreconditionError(None, None, said)


def _wrong(one: Request, ranks: Sequence[int]) -> str:
    """Return an error message if no rank can execute this request; empty if all can."""
    if one.kind in (*_ROWS, "reducescatter") and any(shape == () for _, shape in one.tensors):
        return f"{one.kind} of a scalar, which has no rows"
    if one.kind in _REDUCED and any(dtype == "object" for dtype, _ in one.tensors):
        return "strings cannot be reduced"
    if one.op == "Adasum" and not all("float" in dtype for dtype, _ in one.tensors):
        return "Adasum needs floating-point tensors"
    if one.root is not None and one.root not in ranks:
        return f"root_rank={one.root} is none of {', '.join(map(str, ranks))}"
    return ""
