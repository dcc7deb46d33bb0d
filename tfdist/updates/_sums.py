"""Sums of what several steps bring to one exchange, in place: dense tensors, or rows of slices, each row once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.exchange import Exchange
from tfdist.engine.sparse_rows import Rows, Table, merged, unmerged


class Sum(Protocol):
    """Of one exchange's arguments."""

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        """What one step brings; the first one begins anew."""

    def mean(self, steps: int) -> list[np.ndarray]:
        """The sum divided by the steps that were added, in the dtypes that travel; there is no more to be added."""

    def nothing(self) -> list[np.ndarray]:
        """What an average of nothing is."""


def sum_of(exchange: Exchange) -> Sum:
    """For what an exchange of gradients is given.

    Raises:
      TypeError: it is none of gradients.
    """
    if isinstance(exchange, Rows):
        return _RowSums(exchange.tables)
    if isinstance(exchange, AllReduce):
        return _TensorSums(exchange.dtype)
    raise TypeError(f"{exchange.what} is not an exchange of gradients, whose steps could be added up")


class _TensorSums:
    """Of tensors that travel in one dtype; added in float32 if that is narrower."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._wide = reduce_ops.wide(dtype)
        self._sums: list[np.ndarray] = []

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        shapes = [a.shape for a in arrays]
        if first:
            if [s.shape for s in self._sums] != shapes:
                self._sums = [np.empty(shape, self._wide) for shape in shapes]
            for total, array in zip(self._sums, arrays, strict=True):
                np.copyto(total, array)
            return
        if [s.shape for s in self._sums] != shapes:
            raise ValueError(f"gradients of shapes {[s.shape for s in self._sums]} are followed by some of {shapes}")
        for total, array in zip(self._sums, arrays, strict=True):
            np.add(total, array.astype(self._wide, copy=False), out=total)

    def mean(self, steps: int) -> list[np.ndarray]:
        for total in self._sums:
            reduce_ops.scale(total, steps)
        return [total.astype(self._dtype, copy=False) for total in self._sums]

    def nothing(self) -> list[np.ndarray]:
        return [_zeros(total.shape, self._dtype) for total in self._sums]


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """New memory, which TensorFlow takes over without a copy, and may write to."""
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)


class _RowSums:
    """Of the rows of several tables: a row that several steps bring is held once, unless they are to stay unmerged."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._held: list[list[tuple[np.ndarray, np.ndarray]]] = []

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        if first:
            self._held = [[] for _ in self._tables]
        for table, held, indices, values in zip(self._tables, self._held, arrays[::2], arrays[1::2], strict=True):
            wide = values.astype(reduce_ops.wide(values.dtype), copy=False)
            held.append((indices, wide.reshape(len(indices), table.width)))
            if len(held) > 1 and table.way != "unmerged":
                held[:] = [merged(held, 1)]

    def mean(self, steps: int) -> list[np.ndarray]:
        found = []
        for table, held in zip(self._tables, self._held, strict=True):
            indices, values = unmerged(held, steps)
            found += [indices, values.astype(table.dtype, copy=False).reshape(len(indices), *table.row_shape)]
        self._held = []
        return found

    def nothing(self) -> list[np.ndarray]:
        empty = [(np.empty(0, t.index_dtype), np.empty((0, *t.row_shape), t.dtype)) for t in self._tables]
        return [array for pair in empty for array in pair]
