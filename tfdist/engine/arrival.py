"""Arrival: the ranks meet before other operations combine their tensors, for example on a device.

Ranks exchange their flags of a step here: who has no data, whose variables were set, who wants to stop. Missing ranks
are detected here, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.engine._buffers import capacity
from tfdist.engine._mapped_rows import union_of
from tfdist.engine.engines import Bucket, Context
from tfdist.engine.sparse_rows import Table


class Arrival:
    """See ``exchange.Exchange``. The results are this rank's weight in the sum, a float64, and a key, an int32.

    The key identifies the exchange, and is the same on all ranks.

    Args:
      bucket: the tensors and the operation, a sum or a mean.
      lines: descriptions of the tensors, compared between the ranks.
      by: name of what combines the tensors, the same on all ranks.

    Attributes:
      by: as given.
      size_bytes: bytes of the tensors, which the ranks compare; set for each call if the shapes are unknown.
    """

    shares_memory = False

    def __init__(self, bucket: Bucket, lines: Sequence[str], by: str) -> None:
        self._bucket, self.by, self.size_bytes = bucket, by, bucket.size_bytes
        self.what = bucket.what
        self.lines: Sequence[str] = [*lines, f"{bucket.what}: {bucket.op} of {bucket.dtype.name} by {by}"]
        self._counts, self._key = np.float64(0), np.int32(0)

    def open(self, context: Context) -> None:
        """Take the key."""
        self._key = np.int32(context.key(None))

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Do nothing: other operations get the tensors."""

    def load_nothing(self) -> None:
        """Raise RuntimeError: a rank without data cannot run the operations. (``join.check`` reports this before.)"""
        raise RuntimeError(f"{self.what} is combined by {self.by}, which a rank without data does not run")

    def communicate(self, context: Context) -> None:
        """Wait for all ranks."""
        with context.span("wait", self.what):
            context.arrive(self.what, self.size_bytes)
        divisor = len(context.present) if self._bucket.op == "mean" else 1
        self._counts = np.float64(1 / divisor if context.contributes else 0)

    def results(self) -> list[np.ndarray]:
        """Return this rank's weight, and the key."""
        return [np.array(self._counts), np.array(self._key)]


class RowArrival(Arrival):
    """Arrival of slices (IndexedSlices): the ranks also exchange their indices, but no values.

    The third result is the number of elements to sum, an int32, and each number has a key of its own. TensorFlow keeps
    a size for each key (tensorflow/core/common_runtime/collective_param_resolver_distributed.cc). So numbers are
    rounded up, to be few.

    Then come, for each table, ``places`` and ``indices``. This rank's row i is added to row ``places[i]`` of the sum,
    which is row ``indices[places[i]]`` of the table. Indices are distinct and ascending. If the table is unmerged, each
    row of each rank has a row of the sum, in the order of the ranks. If ``places`` is empty, this rank's rows do not
    count.

    Args:
      bucket: all values and the operation.
      tables: variables with slices.
      lines: descriptions of the slices, compared between the ranks.
      by: name of what combines the values, the same on all ranks.
    """

    def __init__(self, bucket: Bucket, tables: Sequence[Table], lines: Sequence[str], by: str) -> None:
        super().__init__(bucket, [*lines, *map(str, tables)], by)
        self._tables = tables
        self._elements = np.int32(0)
        self._found: list[np.ndarray] = []

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take each table's indices, [rows]; an index may come more than once."""
        self._own = [array.astype(np.int64) for array in arrays]

    def communicate(self, context: Context) -> None:
        """Wait for all ranks, and exchange the indices."""
        super().communicate(context)
        own = self._own if context.contributes else [indices[:0] for indices in self._own]
        with context.span("reduce", self.what):
            message = np.concatenate([np.array([len(indices) for indices in own]), *own])
            received = [part.view(np.int64) for part in context.channel.all_gather(message.view(np.uint8))]
        count = len(self._tables)
        by_rank = [np.split(one[count:], np.cumsum(one[: count - 1])) for one in received]
        self._found, elements = [], 1
        for table, indices, of_table in zip(self._tables, own, zip(*by_rank, strict=True), strict=True):
            if table.way == "unmerged":
                rows = np.concatenate(of_table)
                before = sum(map(len, of_table[: context.channel.rank]))
                places = np.arange(before, before + len(indices))
            else:
                rows = union_of(of_table)
                places = np.searchsorted(rows, indices)
            self._found += [places.astype(np.int32), rows.astype(table.index_dtype)]
            elements += len(rows) * table.width
        self._elements = np.int32(capacity(elements))
        self._key = np.int32(context.key(int(self._elements)))

    def results(self) -> list[np.ndarray]:
        """Return the weight, the key, the number of elements, and each table's places and indices."""
        return [*super().results(), np.array(self._elements), *self._found]
