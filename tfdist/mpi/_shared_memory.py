"""Shared memory of a node's ranks: barriers that carry numbers, and segments of memory to add in.

Each rank owns a segment that all others of its node see. Meeting is a line of numbers a rank, written in turn. Where
ranks do not reach each other's tensors directly (``process_memory``), adding goes piece by piece through a staging
area: a copy into the own segment, a slice added by each rank, and a copy of the slices out. Two meetings a piece order
it all: nobody reads a contribution before everybody has written theirs, and nobody overwrites one, or a sum, that is
still being read. Two staging areas take turns, so that a rank that is a little late holds nobody up.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tfdist.core.alignment import aligned

# What MPICH names a rank's own by, and leaves behind unless the rank comes to MPI's end.
_NAMED = re.compile(r" (/dev/shm/mpich_shm_\S+)$", re.MULTILINE)
LINE_NUMBERS = 8
LINE_BYTES = 8 * LINE_NUMBERS


class Lines:
    """A meeting of the ranks of a node: each brings a line of numbers and reads everybody's.

    A rank writes its turn's number last. Two lines take turns: a rank that is one turn ahead cannot have overwritten
    what a slower one still reads, and none can be two ahead.

    Args:
      memory: for each rank of the node 2 x LINE_BYTES bytes, zero at the start.
      index: of this rank among them.
      sync: a memory barrier.
    """

    def __init__(self, memory: Sequence[np.ndarray], index: int, sync: Callable[[], None]) -> None:
        both = [m.view(np.int64).reshape(2, LINE_NUMBERS) for m in memory]
        # Scalars of a memoryview cost a third of NumPy's.
        self._turns = [[line.data.cast("B").cast("q") for line in lines] for lines in both]
        self._index = index
        self._sync = sync
        self._turn = 0
        self._missing: list[int] = []

    def enter(self, numbers: Sequence[int]) -> None:
        """Begin a turn with this rank's numbers (fewer than LINE_NUMBERS); collective."""
        self._turn += 1
        line = self._turns[self._index][self._turn % 2]
        for place, number in enumerate(numbers, 1):
            line[place] = number
        self._sync()
        line[0] = self._turn
        self._sync()
        self._missing = [i for i in range(len(self._turns)) if i != self._index]

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        """Whether all have begun this turn."""
        parity = self._turn % 2
        while self._missing:
            if self._turns[self._missing[-1]][parity][0] < self._turn:
                return False
            self._missing.pop()
        self._sync()
        return True

    def read(self, count: int) -> list[list[int]]:
        """So many numbers of what each has brought, in the order of the ranks."""
        parity = self._turn % 2
        return [lines[parity][1 : 1 + count].tolist() for lines in self._turns]


class Segments:
    """Hands out the same places of all segments of a node, one after the other.

    Args:
      memory: uint8, each rank's whole segment, zero at the start; equally long.
      index: of this rank among them.
      sync: a memory barrier.
    """

    def __init__(self, memory: Sequence[np.ndarray], index: int, sync: Callable[[], None]) -> None:
        self.index = index
        self._memory = memory
        self._sync = sync
        self._used = 0

    @property
    def free_bytes(self) -> int:
        """What is left of each segment."""
        return self._memory[0].nbytes - self._used

    @property
    def ranks(self) -> int:
        """Ranks of the node."""
        return len(self._memory)

    def lines(self) -> Lines:
        """A meeting of its own."""
        return Lines(self.each(2 * LINE_BYTES), self.index, self._sync)

    def each(self, size_bytes: int) -> list[np.ndarray]:
        """The next bytes of every rank's segment, aligned."""
        start = self._used
        self._used += aligned(size_bytes)
        return [m[start : start + size_bytes] for m in self._memory]


def take_names_off() -> None:
    """What MPI shares here goes with the processes that have it, however they end; all that need it have it already."""
    for name in set(_NAMED.findall(Path("/proc/self/maps").read_text(errors="replace"))):
        with contextlib.suppress(OSError):
            os.unlink(name)
