"""Requests: what a rank says of an operation before it begins, and whether all ranks say the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

Kind = Literal[
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join", "process set", "given up"
]
_ROWS = ("allgather", "alltoall")  # whose first dimensions may differ
_JOINED = ("allreduce", "join")  # which a rank that has joined takes part in with nothing
_JOINED_OPS = ("Average", "Sum")


@dataclasses.dataclass(frozen=True)
class Request:
    """An operation of one rank.

    Attributes:
      kind: of operation.
      name: by which the ranks find each other's.
      tensors: dtype and shape of each; the first dimension is None where it may differ.
      op: how it combines: one of ``ReduceOp``'s names; empty if it does not.
      root: rank in the process set; 0 if there is none.
      scales: what is multiplied with before and after.
      error: what this rank has found wrong with its own arguments; empty if nothing.
      words: what else must be alike.
      in_graph: it was begun by a graph, which ends with the first of its operations that fails.
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
    """The ranks do not bring the same; nothing has been sent."""


class BadArgument(Exception):
    """A rank has brought what cannot be; nothing has been sent."""


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
    """Of these arrays."""
    if not error and kind in (*_ROWS, "reducescatter") and any(a.ndim == 0 for a in arrays):
        error = f"{kind} of a scalar, which has no rows"
    shapes = [(None, *a.shape[1:]) if kind in _ROWS and a.ndim else a.shape for a in arrays]
    tensors = tuple((a.dtype.name, shape) for a, shape in zip(arrays, shapes, strict=True))
    if not error and any(a.dtype.kind in "OSU" for a in arrays) and kind not in ("allgather", "broadcast", "alltoall"):
        error = "strings cannot be combined"
    if not error and op == "Adasum" and any(a.dtype.kind in "iub" for a in arrays):
        error = "Adasum is of floating-point numbers"
    return Request(kind, name, tensors, op, root, scales, error, words, in_graph)


def check(of_ranks: Mapping[int, Request], ranks: Sequence[int], joined: Sequence[int]) -> None:
    """Whether what the ranks bring under one name can be carried out.

    Args:
      of_ranks: by their numbers in the process set, in their order.
      ranks: their numbers in the job.
      joined: those that take part with nothing.

    Raises:
      BadArgument: a rank has found its own arguments wrong.
      Mismatch: they bring different things, or what cannot be done without those that have joined.
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
            f"{', '.join(str(ranks[r]) for r in joined)}, which has called join(): of those that have joined only sums "
            "and averages by allreduce can do without data"
        )


def _difference(one: Request, other: Request) -> tuple[str, str] | None:
    """What differs, in words."""
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
    """What is wrong with the rows for each rank; empty if nothing is."""
    if equally:
        return f"{rows} rows cannot be split equally over {size} ranks: give splits" if rows % size else ""
    if parts.shape != (size,) or parts.sum() != rows or (parts < 0).any():
        return f"splits={parts.tolist()} must be {size} counts, one a rank, that add up to the {rows} rows"
    return ""
