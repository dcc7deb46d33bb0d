"""Direct rows: ranks of one machine add sparse rows that they read in each other's memory.

When rows are sent, every rank adds the rows of all ranks. Here each rank adds a share of the union of all rows, and
writes its sums to the other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.engine import _node_sum
from tfdist.engine._buffers import Buffers, capacity
from tfdist.engine.engines import AllReduceContext
from tfdist.processes.process_memory import ProcessMemory, address
from tfdist.transport.interfaces import Node

ADDRESSES = 3  # published for a table: addresses of its indices, its values, and the place for the union's values


class DirectRows:
    """Merges the rows of several tables, in one exchange at a time.

    Args:
      what: description for messages.
      node: all ranks of the channel.
      memory: access to the memory of these ranks.
      tables: number of tables.
    """

    def __init__(self, what: str, node: Node, memory: ProcessMemory, tables: int) -> None:
        self._what, self._node, self._memory, self._tables = what, node, memory, tables
        self._buffers = [Buffers() for _ in range(tables)]
        self._capacities = [0] * tables
        self._indices: Sequence[np.ndarray] = ()
        self._values: Sequence[np.ndarray] = ()

    def publish(self, indices: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
        """Publish this rank's rows before it arrives: indices [rows], ascending, and values [rows, width] per table."""
        self._indices, self._values = indices, values
        self._memory.publish([*indices, *values])

    def withdraw(self) -> None:
        """Withdraw what was published, when no rank reads it any more."""
        self._memory.withdraw()
        self._indices = self._values = ()

    def merge(
        self, context: AllReduceContext, chosen: Sequence[int], counts: np.ndarray, divisor: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
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
            brought = [self._all_indices(context, table, counts[:, table]) for table in chosen]
            unions = [union_of(indices) for indices in brought]
            totals = [self._total(table, len(union)) for table, union in zip(chosen, unions, strict=True)]
            # Other ranks still read the indices: the addresses that were published before stay the same.
            self._memory.publish([*self._indices, *self._values, *totals])
        self._meet(context, "counted")
        with context.span("reduce", self._what):
            for number, (table, union, indices) in enumerate(zip(chosen, unions, brought, strict=True)):
                self._add(context, table, 2 * self._tables + number, union, indices, totals[number], divisor)
        self._meet(context, "added")
        self.withdraw()
        return list(zip(unions, totals, strict=True))

    def _meet(self, context: AllReduceContext, what: str) -> None:
        with context.span("wait for rows", self._what):
            self._node.copied.enter()
            self._node.copied.wait(context.place(f"{self._what}, {what}"))

    def _total(self, table: int, rows: int) -> np.ndarray:
        width, dtype = self._values[table].shape[1], self._values[table].dtype
        self._capacities[table] = max(self._capacities[table], capacity(rows * width))  # the next unions fit, too
        whole, _ = self._buffers[table].take([self._capacities[table]], dtype)
        return whole[: rows * width].reshape(rows, width)

    def _all_indices(self, context: AllReduceContext, table: int, counts: np.ndarray) -> list[np.ndarray]:
        found = []
        for i, rank in enumerate(self._node.ranks):
            own = self._indices[table][: counts[rank]]
            if i != self._node.index:
                own = np.empty(counts[rank], own.dtype)
                self._read(context, i, table, 0, own)
            found.append(own)
        return found

    def _read(self, context: AllReduceContext, index: int, number: int, start_bytes: int, out: np.ndarray) -> None:
        """Copy part of an array that another rank has published under a number to ``out``."""
        if out.nbytes:
            there = int(self._memory.addresses(index)[number]) + start_bytes
            with _node_sum.peer_errors(context, self._what, self._node.ranks[index]):
                vectors = np.array([[there, out.nbytes]]), np.array([[address(out), out.nbytes]])
                self._memory.read(index, *vectors, out.nbytes)

    def _add(
        self,
        context: AllReduceContext,
        table: int,
        number: int,
        union: np.ndarray,
        indices: Sequence[np.ndarray],
        total: np.ndarray,
        divisor: int,
    ) -> None:
        """Add this rank's share of the union block by block into ``total``, which each rank publishes as ``number``."""
        share = self._node.own(len(union), 64)
        width, dtype = total.shape[1], total.dtype
        wide = reduce_ops.wide(dtype)
        rows = max(1, _node_sum.BLOCK_BYTES // max(1, width * wide.itemsize))
        scratch = self._node.scratch(rows * width * (wide.itemsize + dtype.itemsize))
        landing = scratch[rows * width * wide.itemsize :].view(dtype).reshape(rows, width)
        for start in range(share.start, share.stop, rows):
            words = union[start : min(start + rows, share.stop)]
            result = total[start : start + len(words)]
            sums = scratch[: result.size * wide.itemsize].view(wide).reshape(result.shape) if wide != dtype else result
            sums[:] = 0
            fresh = True
            for i, theirs in enumerate(indices):
                first, last = np.searchsorted(theirs, words[0]), np.searchsorted(theirs, words[-1], "right")
                values = self._values[table][first:last]
                if i != self._node.index:
                    values = landing[: last - first]
                    self._read(context, i, self._tables + table, first * width * dtype.itemsize, values)
                places = np.searchsorted(words, theirs[first:last])
                if fresh:
                    sums[places] = values
                else:
                    sums[places] += values.astype(wide, copy=False)
                fresh = fresh and first == last
            reduce_ops.scale(sums, divisor)
            if sums is not result:
                result[:] = sums
            self._hand_out(context, number, total, start, start + len(words))

    def _hand_out(self, context: AllReduceContext, number: int, total: np.ndarray, start: int, stop: int) -> None:
        for i, rank in enumerate(self._node.ranks):
            if i != self._node.index:
                with _node_sum.peer_errors(context, self._what, rank):
                    there = int(self._memory.addresses(i)[number])
                    self._memory.write(i, total[start:stop], there + total[:start].nbytes)


def union_of(indices: Sequence[np.ndarray]) -> np.ndarray:
    """Return the distinct indices of all arrays, ascending."""
    every = np.concatenate(indices)
    every.sort(kind="stable")  # this sort merges arrays that ascend already, as most do
    return every[np.flatnonzero(np.diff(every, prepend=every[:1] - 1))]
