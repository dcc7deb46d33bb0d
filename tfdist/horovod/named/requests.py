"""Requests: the description of an operation that ranks exchange and compare before it is executed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

Kind = Literal[
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "process set", "given up"
]
_ROWS = ("allgather", "alltoall")  # the first dimension may differ between ranks
_JOINED = ("allreduce", "join")  # a rank that has joined takes part without data
_JOINED_OPS = ("Average", "Sum")


@dataclasses.dataclass(frozen=True)
class Request:
    """One rank's description of an operation.

    Attributes:
      kind: kind of operation.
      name: name by which the ranks match their operations.
      tensors: dtype and shape of each tensor; the first dimension is None where it may differ.
      op: name of a ``ReduceOp``; empty for operations without a reduction.
      root: index of the root in the process set; 0 for operations without a root.
      scales: factors before and after the reduction.
      error: error message about this rank's own arguments; empty if they are right.
      words: further text that must be equal on all ranks.
      in_graph: whether a graph has begun it; the graph's run ends when one of its operations fails.
    """

    kind: Kind
    name: str
    tensors: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    op: str = ""
    root: int = 0
    scales: tuple[float, float] = (1.0, 1.0)
    error: str = ""
    words: str = ""
    in_graph: bool = dataclasses.field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


class Mismatch(Exception):
    """The ranks' requests differ; no data has been sent."""


class BadArgument(Exception):
    """A rank's arguments are wrong; no data has been sent."""


def request(
    kind: Kind,
    name: str,
    arrays: Sequence[np.ndarray] = (),
    op: str = "",
    root: int = 0,
    scales: tuple[float, float] = (1.0, 1.0),
    error: str = "",
    words: str = "",
    in_graph: bool = False,
) -> Request:
    """Return a request for these arrays, with an error message if the operation cannot take them."""
    if not error and kind in (*_ROWS, "reducescatter") and any(a.ndim == 0 for a in arrays):
        error = f"{kind} of a scalar, which has no rows"
    shapes = [(None, *a.shape[1:]) if kind in _ROWS and a.ndim else a.shape for a in arrays]
    tensors = tuple((a.dtype.name, shape) for a, shape in zip(arrays, shapes, strict=True))
    if not error and any(a.dtype.kind in "OSU" for a in arrays) and kind not in ("allgather", "broadcast", "alltoall"):
        error = "strings cannot be reduced"
    if not error and op == "Adasum" and any(a.dtype.kind in "iub" for a in arrays):
        error = "Adasum needs floating-point tensors"
    return Request(kind, name, tensors, op, root, scales, error, words, in_graph)


def check(of_ranks: Mapping[int, Request], ranks: Sequence[int], joined: Sequence[int]) -> None:
    """Check that the ranks' requests of one name can be executed together.

    Args:
      of_ranks: requests by index in the process set, in the order of the ranks.
      ranks: ranks in the job, by index in the process set.
      joined: indices of ranks that have joined and take part without data.

    Raises:
      BadArgument: a rank has found its own arguments wrong.
      Mismatch: the requests differ, or the operation needs the data of ranks that have joined.
    """
    wrong = {ranks[rank]: r.error for rank, r in of_ranks.items() if r.error}
    first_rank, first = next(iter(of_ranks.items()))
    if wrong:
        rank, error = next(iter(wrong.items()))
        raise BadArgument(f"{first}: rank {rank}: {error}")
    for rank, other in of_ranks.items():
        difference = _difference(first, other)
        if difference:
            mine, theirs = difference
            raise Mismatch(f"{first}: rank {ranks[first_rank]} has {mine}, but rank {ranks[rank]} {theirs}")
    if joined and (first.kind not in _JOINED or first.op not in _JOINED_OPS):
        raise Mismatch(
            f"{first}{f' ({first.op})' if first.op else ''} cannot be done without rank "
            f"{', '.join(str(ranks[r]) for r in joined)}, which has called join(). Only sums and averages by allreduce "
            "can do without the data of a joined rank"
        )


def _difference(one: Request, other: Request) -> tuple[str, str] | None:
    """Return the first difference as two texts, one for each request; None if they are equal."""
    if one == other:
        return None
    if one.kind != other.kind:
        return f"the operation {one.kind}", f"the operation {other.kind}"
    if len(one.tensors) != len(other.tensors):
        return f"{len(one.tensors)} tensors", f"{len(other.tensors)}"
    for (dtype, shape), (other_dtype, other_shape) in zip(one.tensors, other.tensors, strict=True):
        if dtype != other_dtype:
            return f"dtype {dtype}", f"dtype {other_dtype}"
        if shape != other_shape:
            return f"shape {_words(shape)}", f"shape {_words(other_shape)}"
    if one.op != other.op:
        return f"op {one.op}", f"op {other.op}"
    if one.root != other.root:
        return f"root rank {one.root}", f"root rank {other.root}"
    if one.words != other.words:
        return one.words, other.words
    return f"prescale and postscale factors {one.scales}", f"{other.scales}"


def _words(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('rows' if size is None else str(size) for size in shape)}]"


def wrong_splits(parts: np.ndarray, rows: int, size: int, equally: bool) -> str:
    """Return an error message if the rows cannot be split so; empty if they can."""
    if equally:
        return f"{rows} rows cannot be split equally over {size} ranks: give splits" if rows % size else ""
    if parts.shape != (size,) or parts.sum() != rows or (parts < 0).any():
        return f"splits={parts.tolist()} must be {size} counts, one a rank, that add up to the {rows} rows"
    return ""
