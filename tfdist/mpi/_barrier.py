"""Barrier of a node's ranks in their shared memory, at which each brings a row of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

ROW_NUMBERS = 8
ROW_BYTES = 8 * ROW_NUMBERS


class Barrier:
    """A barrier of a node's ranks, at which each rank writes a row of numbers and reads the rows of all.

    A rank writes the number of its turn last. It uses two rows in turn. So a rank that is one turn ahead does not
    overwrite a row that a slower rank still reads. No rank can be two turns ahead.

    Args:
      memory: for each rank of the node 2 x ROW_BYTES bytes, zero at the start.
      index: index of this rank on the node.
      sync: function that executes a memory barrier.
    """

    def __init__(self, memory: Sequence[np.ndarray], index: int, sync: Callable[[], None]) -> None:
        both = [m.view(np.int64).reshape(2, ROW_NUMBERS) for m in memory]
        # Scalars of a memoryview take a third of the time of NumPy's.
        self._turns = [[row.data.cast("B").cast("q") for row in rows] for rows in both]
        self._index = index
        self._sync = sync
        self._turn = 0
        self._missing: list[int] = []

    def enter(self, numbers: Sequence[int]) -> None:
        """Begin a turn with this rank's numbers (fewer than ROW_NUMBERS). Collective: the node's ranks."""
        self._turn += 1
        row = self._turns[self._index][self._turn % 2]
        for place, number in enumerate(numbers, 1):
            row[place] = number
        self._sync()
        row[0] = self._turn
        self._sync()
        self._missing = [i for i in range(len(self._turns)) if i != self._index]

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        """Return whether all ranks have begun this turn."""
        parity = self._turn % 2
        while self._missing:
            if self._turns[self._missing[-1]][parity][0] < self._turn:
                return False
            self._missing.pop()
        self._sync()
        return True

    def read(self, count: int) -> list[list[int]]:
        """Return the first ``count`` numbers of each rank, in the order of the ranks."""
        parity = self._turn % 2
        return [rows[parity][1 : 1 + count].tolist() for rows in self._turns]
