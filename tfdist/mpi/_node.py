"""MPI node: the ranks of one machine in one channel, and their exchange with other machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import aligned
from tfdist.core.reduce_ops import Op
from tfdist.core.rounded_wire import Wire
from tfdist.core.topology import Shard
from tfdist.mpi._barrier import ROW_BYTES, Barrier
from tfdist.mpi._messages import Wait
from tfdist.mpi._reduction import InterNodeReductions
from tfdist.mpi._shared_memory import SharedMemory
from tfdist.processes.mapped_memory import TABLE_NUMBERS, MappedMemory
from tfdist.transport.interfaces import Sums
from tfdist.transport.one_process import Final
from tfdist.transport.stall_detection import StallDetector


class MpiNode:
    """The shared memory of a channel; see ``interfaces.Node``.

    Args:
      shared: source of the memory.
      memory: memory of each of the node's ranks, of ``needed_bytes``.
      detector: stall detector of this rank.
      ranks: ranks of this node.
      shards: adjacent shards that this rank adds.
      reductions: reductions of the shards over all nodes; None if there is one node.
      small_bytes: size of a rank's part of each staging area.
    """

    def __init__(
        self,
        shared: SharedMemory,
        memory: Sequence[np.ndarray],
        detector: StallDetector,
        ranks: Sequence[int],
        shards: Sequence[Shard],
        reductions: InterNodeReductions | None,
        small_bytes: int,
    ) -> None:
        by_rank = [np.split(one, np.cumsum(_sizes(small_bytes))) for one in memory]
        arrivals, barrier, tables, *inputs, _ = zip(*by_rank, strict=True)
        self._arrivals, self._barrier = (Barrier(part, shared.index, shared.fence) for part in (arrivals, barrier))
        self._detector = detector
        self._area = 0
        self._reductions = reductions
        self._start, self._stop = shards[0].start, shards[-1].stop
        self.ranks = ranks
        self.index = shared.index
        self.alone = reductions is None
        numbers = [table.view(np.int64)[:TABLE_NUMBERS] for table in tables]
        self.memory = MappedMemory(shared.pids, numbers, shared.index)
        # Two, which take turns, so that a slightly late rank does not delay the others.
        self.inputs: Sequence[Sequence[np.ndarray]] = inputs

    @staticmethod
    def needed_bytes(small_bytes: int) -> int:
        """Return the shared memory that a node takes of each rank, with staging areas of this size."""
        return sum(_sizes(small_bytes))

    def enter(self) -> None:
        self._barrier.enter(())

    def wait(self, place: str) -> None:
        if not self._barrier.Test():
            self._detector.wait(self._barrier, place, self.ranks, moving=True)

    def bring(self, numbers: Sequence[int], wait: Wait) -> list[list[int]]:
        """Exchange numbers among the node's ranks, for whom ``wait`` waits. Return the numbers of each rank."""
        self._arrivals.enter(numbers)
        wait(self._arrivals)
        return self._arrivals.read(len(numbers))

    def next_area(self) -> int:
        self._area = 1 - self._area
        return self._area

    def own(self, elements: int, itemsize: int) -> slice:
        return reduce_ops.stretch(elements, self._start, self._stop, itemsize)

    def begin(self, array: np.ndarray, op: Op, place: str, wire: Wire | None = None) -> Sums:
        if self._reductions is None:
            own = self.own(array.size, array.itemsize)
            return Final(own.start, own.stop)
        return self._reductions.begin(array, op, place, wire=wire)


def _sizes(small_bytes: int) -> list[int]:
    """Return the bytes of a rank's parts: two barriers, a table of mapped memory, two staging areas."""
    return [*(aligned(size) for size in (2 * ROW_BYTES, 2 * ROW_BYTES, 8 * TABLE_NUMBERS)), small_bytes, small_bytes]
