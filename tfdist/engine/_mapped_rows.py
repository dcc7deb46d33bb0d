"""Mapped rows: ranks of one machine add sparse rows that they read in memory which they map.

When rows are sent, every rank adds the rows of all ranks. Here each rank adds a share of the union of all rows, and
writes its sums into the other ranks' buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import aligned
from tfdist.engine import _layout, _node_sum
from tfdist.engine._buffers import Buffers, capacity
from tfdist.engine.engines import Context
from tfdist.processes.mapped_memory import STAGING
from tfdist.transport.interfaces import Node

Kind = tuple[np.dtype, np.dtype, int]  # dtype of a table's indices, dtype of its values, elements of a row
Rows = tuple[np.ndarray, np.ndarray]  # indices [rows], ascending, and values [rows, width]


class MappedRows:
    """Merges the rows of several tables, in one exchange at a time.

    Args:
      what: description for messages.
      node: all ranks of the channel.
      kinds: kind of each table.
    """

    def __init__(self, what: str, node: Node, kinds: Sequence[Kind]) -> None:
        self._what, self._node, self._kinds = what, node, kinds
        self._capacities = [0] * len(kinds)  # bytes
        self._results = _node_sum.Results(what, node)
        self._buffers = Buffers(self._results.allocate)
        self._own: Sequence[Rows] = ()

    def publish(self, own: Sequence[Rows]) -> None:
        """Copy this rank's rows of each table into memory that the other ranks map, before this rank arrives."""
        self._own = own
        counts = [len(indices) for indices, _ in own]
        staging = self._node.memory.staging(sum(map(_size_bytes, self._kinds, counts)))
        for target, source in zip(self._placed(staging.array, counts), own, strict=True):
            np.copyto(target[0], source[0])
            np.copyto(target[1], source[1])
        self._node.memory.publish(STAGING, staging)

    def merge(self, context: Context, chosen: Sequence[int], counts: np.ndarray, divisor: int) -> list[Rows]:
        """Add the ranks' rows in the order of the ranks and divide, after all have arrived. Collective: all ranks.

        Args:
          context: context of the exchange.
          chosen: numbers of the tables to merge.
          counts: number of rows from each rank of the channel for each table, int64 [ranks, tables].
          divisor: divisor of the sums.

        Returns:
          For each chosen table the union of the ranks' indices, ascending, and its values [distinct rows, width]. The
          values' memory is not reused while any array refers to it.
        """
        with context.span("reduce", self._what):
            brought = self._brought(context, counts)
            unions = {table: union_of([rows[table][0] for rows in brought]) for table in chosen}
            for table, union in unions.items():  # the next unions fit, too
                wanted = _size_bytes(self._kinds[table], capacity(len(union)))
                self._capacities[table] = max(self._capacities[table], wanted)
            whole, _ = self._buffers.take(self._capacities, np.dtype(np.uint8))
            self._results.publish(whole)
        self._meet(context, "counted")
        with context.span("reduce", self._what):
            buffers = [whole, *self._results.of_others(context, whole)]
            starts = _layout.offsets(self._capacities, whole.dtype)
            merged = []
            for table, union in unions.items():
                _, dtype, width = self._kinds[table]
                part = slice(starts[table], starts[table] + len(union) * width * dtype.itemsize)
                total, *others = (buffer[part].view(dtype).reshape(len(union), width) for buffer in buffers)
                self._add(union, [rows[table] for rows in brought], total, others, divisor)
                merged.append((union, total))
        self._meet(context, "added")
        self._node.memory.withdraw()
        self._own = ()
        return merged

    def _meet(self, context: Context, what: str) -> None:
        with context.span("wait for rows", self._what):
            self._node.enter()
            self._node.wait(context.place(f"{self._what}, {what}"))

    def _brought(self, context: Context, counts: np.ndarray) -> list[list[Rows]]:
        """Return each rank's rows of each table, in the order of the ranks."""
        theirs = _node_sum.staged(context, self._what, self._node)
        rank = self._node.ranks[self._node.index]
        own = [(indices[:n], values[:n]) for (indices, values), n in zip(self._own, counts[rank], strict=True)]
        return [
            self._placed(theirs[i], counts[other].tolist()) if i in theirs else own
            for i, other in enumerate(self._node.ranks)
        ]

    def _placed(self, area: np.ndarray, counts: Sequence[int]) -> list[Rows]:
        """Return so many rows of each table, which lie in ``area`` one after the other."""
        found, start = [], 0
        for kind, rows in zip(self._kinds, counts, strict=True):
            index_dtype, dtype, width = kind
            middle, stop = start + rows * index_dtype.itemsize, start + _size_bytes(kind, rows)
            values = area[aligned(middle) :][: rows * width * dtype.itemsize].view(dtype)
            found.append((area[start:middle].view(index_dtype), values.reshape(rows, width)))
            start = stop
        return found

    def _add(
        self,
        union: np.ndarray,
        brought: Sequence[Rows],
        total: np.ndarray,
        others: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        """Add this rank's share of the union block by block into ``total``, and copy it to the other ranks' totals."""
        share = self._node.own(len(union), 64)
        width, dtype = total.shape[1], total.dtype
        wide = reduce_ops.wide(dtype)
        rows = max(1, _node_sum.BLOCK_BYTES // max(1, width * wide.itemsize))
        scratch = np.empty((rows, width), wide) if wide != dtype else total
        for start in range(share.start, share.stop, rows):
            block = slice(start, min(start + rows, share.stop))
            words, result = union[block], total[block]
            sums = scratch[: len(words)] if wide != dtype else result
            sums[:] = 0
            fresh = True
            for indices, values in brought:
                first, last = np.searchsorted(indices, words[0]), np.searchsorted(indices, words[-1], "right")
                places = np.searchsorted(words, indices[first:last])
                if fresh:
                    sums[places] = values[first:last]
                else:
                    sums[places] += values[first:last].astype(wide, copy=False)
                fresh = fresh and first == last
            reduce_ops.scale(sums, divisor)
            if sums is not result:
                result[:] = sums
            for other in others:
                np.copyto(other[block], result)


def _size_bytes(kind: Kind, rows: int) -> int:
    """Return the bytes of so many rows of a table: indices, and values, each aligned."""
    index_dtype, dtype, width = kind
    return aligned(rows * index_dtype.itemsize) + aligned(rows * width * dtype.itemsize)


def union_of(indices: Sequence[np.ndarray]) -> np.ndarray:
    """Return the distinct indices of all arrays, ascending."""
    every = np.concatenate(indices)
    every.sort(kind="stable")  # this sort merges arrays that ascend already, as most do
    return every[np.flatnonzero(np.diff(every, prepend=every[:1] - 1))]
