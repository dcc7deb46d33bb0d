"""Sparse rows (IndexedSlices) as one exchange: the average over the ranks of each row that any rank touched.

The way in which rows travel changes the result by rounding only. ``gather`` sends rows, or reads them in mapped memory
on one machine, and adds them in the order of the ranks. ``dense`` has MPI add a dense array with a mark for each
touched row. ``unmerged`` does not add gathered rows: the optimizer sees duplicates as one process would have them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tfdist.core import reduce_ops
from tfdist.engine._mapped_rows import MappedRows, union_of
from tfdist.engine.engines import Context

SparseMode = Literal["auto", "dense", "gather", "unmerged"]


def gathered_bytes(rows: int, width: int, value_bytes: int = 4, index_bytes: int = 8) -> int:
    """Return the bytes that every rank receives if the rows themselves travel.

    Args:
      rows: number of rows of all ranks together, without duplicates on a rank.
      width: elements of a row.
      value_bytes: bytes of an element.
      index_bytes: bytes of an index.
    """
    return rows * (width * value_bytes + index_bytes)


def dense_bytes(vocabulary: int, width: int, value_bytes: int = 4) -> int:
    """Return the bytes that every rank receives if all rows travel, touched or not, each with a mark.

    Args:
      vocabulary: number of rows of the variable.
      width: elements of a row.
      value_bytes: bytes of an element.
    """
    return vocabulary * (width + 1) * value_bytes


def choose(
    way: SparseMode, rows: int, vocabulary: int | None, width: int, value_bytes: int, index_bytes: int
) -> SparseMode:
    """Choose how rows travel in one step; for ``auto``: ``dense`` if it moves fewer bytes, else ``gather``.

    An all-reduce moves every byte twice: to the sum, and as the sum.
    """
    if way == "unmerged":
        return way
    if vocabulary is None:
        return "gather"
    if way != "auto":
        return way
    dense = 2 * dense_bytes(vocabulary, width, value_bytes)
    return "dense" if gathered_bytes(rows, width, value_bytes, index_bytes) > dense else "gather"


@dataclasses.dataclass(frozen=True)
class Table:
    """One variable with gradients of IndexedSlices.

    Attributes:
      name: name for messages.
      vocabulary: number of rows of the variable; None if unknown.
      way: way in which rows travel, as set by the user.
      index_dtype: dtype of the indices.
      dtype: dtype of the values on the wire.
      row_shape: static shape of a row; () for scalars.
    """

    name: str
    vocabulary: int | None
    way: SparseMode
    index_dtype: np.dtype
    dtype: np.dtype
    row_shape: tuple[int, ...]

    def __str__(self) -> str:
        rows = "?" if self.vocabulary is None else self.vocabulary
        shape = f"{[rows, *self.row_shape]} by {self.index_dtype.name}"
        return f"rows of {self.name} {shape}: mean of {self.dtype.name}, {self.way}"

    @property
    def width(self) -> int:
        """Elements of a row."""
        return int(np.prod(self.row_shape))


class Rows:
    """See ``exchange.Exchange``. The slices of several variables.

    Args:
      what: description for messages.
      tables: the variables.
      lines: descriptions of the slices, compared between the ranks.

    Attributes:
      tables: as given.
      exchanged_bytes: for each table the bytes of all ranks' rows in the last step, or of the dense array.
      ways: for each table the way in which its rows travelled in the last step.
    """

    shares_memory = True

    def __init__(self, what: str, tables: Sequence[Table], lines: Sequence[str] = ()) -> None:
        self.what = what
        self.lines: Sequence[str] = [*lines, *map(str, tables)]
        self.tables = tables
        self.exchanged_bytes: list[int] = []
        self.ways: list[SparseMode] = []
        self._mapped: MappedRows | None = None

    def open(self, context: Context) -> None:
        """Check whether the ranks can map each other's memory."""
        node = context.channel.node
        if node and node.alone and context.choice.large:
            self._mapped = MappedRows(self.what, node, [(t.index_dtype, t.dtype, t.width) for t in self.tables])

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take (indices [rows], values [rows, …]) of each table. Indices occur once, but for unmerged tables."""
        self._indices, self._values = [], []
        for table, indices, values in zip(self.tables, arrays[::2], arrays[1::2], strict=True):
            rows = values.reshape(len(indices), table.width)
            if table.way != "unmerged" and not (indices[1:] > indices[:-1]).all():
                order = np.argsort(indices)
                indices, rows = indices[order], rows[order]
            self._indices.append(indices)
            self._values.append(rows)

    def load_nothing(self) -> None:
        """Load no rows."""
        self._indices = [np.empty(0, t.index_dtype) for t in self.tables]
        self._values = [np.empty((0, t.width), t.dtype) for t in self.tables]

    def communicate(self, context: Context) -> None:
        """Wait for all ranks, count the rows, choose how they travel, and exchange them."""
        if self._mapped:
            self._mapped.publish(list(zip(self._indices, self._values, strict=True)))
        with context.span("wait", self.what):
            context.arrive(self.what, 0)
        if not context.contributes:
            self.load_nothing()
        with context.span("reduce", self.what):
            counts = self._counts(context)
        rows = counts.sum(0).tolist()
        self.ways = list(map(self._way, self.tables, rows))
        self.exchanged_bytes = list(map(_exchanged_bytes, self.tables, self.ways, rows))
        numbers = {way: [i for i, chosen in enumerate(self.ways) if chosen == way] for way in self.ways}
        if self._mapped:
            self._merge(context, self._mapped, numbers.pop("gather", []), counts)
        with context.span("reduce", self.what):
            self._gather(context, [*numbers.get("gather", []), *numbers.get("unmerged", [])], counts)
            for i in numbers.get("dense", []):
                self._reduce(context, i)

    def results(self) -> list[np.ndarray]:
        """Return (indices, values) of each table: ascending, each index once; if unmerged, all rows of all ranks."""
        results = []
        for table, indices, values in zip(self.tables, self._indices, self._values, strict=True):
            results += [indices, values.reshape(len(indices), *table.row_shape)]
        return results

    def _way(self, table: Table, rows: int) -> SparseMode:
        if self._mapped and table.way == "auto":
            return "gather"  # in shared memory this moves no more than the union of the rows
        value_bytes, index_bytes = table.dtype.itemsize, table.index_dtype.itemsize
        return choose(table.way, rows, table.vocabulary, table.width, value_bytes, index_bytes)

    def _counts(self, context: Context) -> np.ndarray:
        own = np.array([len(i) for i in self._indices], np.int64)
        return np.stack([part.view(np.int64) for part in context.channel.all_gather(own.view(np.uint8))])

    def _merge(self, context: Context, mapped: MappedRows, chosen: Sequence[int], counts: np.ndarray) -> None:
        if not chosen:
            return
        found = mapped.merge(context, chosen, counts, len(context.present))
        for i, (indices, values) in zip(chosen, found, strict=True):
            self._indices[i], self._values[i] = indices, values

    def _gather(self, context: Context, chosen: Sequence[int], counts: np.ndarray) -> None:
        if not chosen:
            return
        own = [self._indices[i] for i in chosen] + [self._values[i] for i in chosen]
        parts = context.channel.all_gather(np.concatenate([a.reshape(-1).view(np.uint8) for a in own]))
        unpacked = [self._unpacked(part, chosen, rows) for part, rows in zip(parts, counts, strict=True)]
        for i in chosen:
            contributions = [by_table[i] for by_table in unpacked]
            combine = merged if self.ways[i] == "gather" else unmerged
            self._indices[i], self._values[i] = combine(contributions, len(context.present))

    def _unpacked(
        self, part: np.ndarray, chosen: Sequence[int], rows: np.ndarray
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return one rank's (indices, values) of each table. In ``part`` all indices come first, then all values."""
        start, arrays = 0, []
        for dtypes, widths in (
            ([self.tables[i].index_dtype for i in chosen], [1] * len(chosen)),
            ([self.tables[i].dtype for i in chosen], [self.tables[i].width for i in chosen]),
        ):
            for i, dtype, width in zip(chosen, dtypes, widths, strict=True):
                stop = start + int(rows[i]) * width * dtype.itemsize
                arrays.append(part[start:stop].view(dtype))  # NumPy also reads unaligned arrays
                start = stop
        indices, values = arrays[: len(chosen)], arrays[len(chosen) :]
        return {
            i: (a, b.reshape(len(a), self.tables[i].width)) for i, a, b in zip(chosen, indices, values, strict=True)
        }

    def _reduce(self, context: Context, i: int) -> None:
        table, indices = self.tables[i], self._indices[i]
        rows = table.vocabulary or 0
        whole = np.zeros(rows * (table.width + 1), table.dtype)
        marks, values = whole[:rows], whole[rows:].reshape(rows, table.width)
        marks[indices] = 1
        values[indices] = self._values[i]
        context.channel.all_reduce(whole, "mean", len(context.present))
        touched = np.flatnonzero(marks != 0)
        self._indices[i] = touched.astype(table.index_dtype)
        self._values[i] = values[touched]


def _exchanged_bytes(table: Table, way: SparseMode, rows: int) -> int:
    if way == "dense":
        return dense_bytes(table.vocabulary or 0, table.width, table.dtype.itemsize)
    return gathered_bytes(rows, table.width, table.dtype.itemsize, table.index_dtype.itemsize)


Contributions = Sequence[tuple[np.ndarray, np.ndarray]]


def merged(contributions: Contributions, divisor: int) -> tuple[np.ndarray, np.ndarray]:
    """Add the ranks' rows in the order of the ranks.

    Args:
      contributions: (indices [rows], values [rows, width]) of each rank, every index once.
      divisor: divisor of the sums.

    Returns:
      indices [distinct rows], ascending, and values [distinct rows, width].
    """
    dtype = contributions[0][1].dtype
    union = union_of([indices for indices, _ in contributions])
    total = np.zeros((len(union), contributions[0][1].shape[1]), reduce_ops.wide(dtype))
    places = [np.searchsorted(union, indices) for indices, _ in contributions]
    total[places[0]] = contributions[0][1]
    for place, (_, values) in zip(places[1:], contributions[1:], strict=True):
        total[place] += values.astype(total.dtype, copy=False)
    reduce_ops.scale(total, divisor)
    return union, total.astype(dtype, copy=False)


def unmerged(contributions: Contributions, divisor: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the ranks' rows and divide them: one process with the batches of all ranks has the same rows.

    Args:
      contributions: (indices [rows], values [rows, width]) of each rank.
      divisor: divisor of each row.

    Returns:
      indices [rows of all], and values [rows of all, width].
    """
    dtype = contributions[0][1].dtype
    total = np.concatenate([values for _, values in contributions]).astype(reduce_ops.wide(dtype), copy=False)
    reduce_ops.scale(total, divisor)
    return np.concatenate([indices for indices, _ in contributions]), total.astype(dtype, copy=False)
