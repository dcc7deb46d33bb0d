"""MPI node: the ranks of one machine in one channel, and their exchange with other machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.core.topology import Shard
from tfdist.core.wires import Wire
from tfdist.mpi._messages import Wait
from tfdist.mpi._reduction import InterNodeReductions
from tfdist.mpi._shared_memory import Segments
from tfdist.processes.mapped_memory import MappedMemory
from tfdist.processes.process_memory import ProcessMemory
from tfdist.transport.interfaces import Chunking, NodeMemory, SplitBarrier, Sums
from tfdist.transport.one_process import Final
from tfdist.transport.stall_detection import StallDetector


class _Meeting:
    """A barrier of the node's ranks; see ``interfaces.SplitBarrier``."""

    def __init__(self, segments: Segments, detector: StallDetector, ranks: Sequence[int]) -> None:
        self._lines = segments.lines()
        self._detector = detector
        self._ranks = ranks

    def enter(self) -> None:
        self._lines.enter(())

    def wait(self, place: str) -> None:
        if not self._lines.Test():
            self._detector.wait(self._lines, place, self._ranks, moving=True)


class MpiNode:
    """The shared memory of a channel; see ``interfaces.Node``.

    Args:
      segments: shared memory of the node's ranks.
      detector: stall detector of this rank.
      ranks: ranks of this node.
      shards: adjacent shards that this rank adds.
      reductions: reductions of the shards over all nodes; None if there is one node.
      sharing: memory that the channel uses.
      pids: process IDs of this node's ranks.
    """

    def __init__(
        self,
        segments: Segments,
        detector: StallDetector,
        ranks: Sequence[int],
        shards: Sequence[Shard],
        reductions: InterNodeReductions | None,
        sharing: NodeMemory,
        pids: Sequence[int],
    ) -> None:
        self._lines = segments.lines()
        self._scratch = np.empty(0, np.uint8)
        self._area = 0
        self._reductions = reductions
        self._start, self._stop = shards[0].start, shards[-1].stop
        self.ranks = ranks
        self.index = segments.index
        self.alone = reductions is None
        # The barriers come first: their memory must be zero, and only the beginning of a window is.
        self.copied: SplitBarrier = _Meeting(segments, detector, ranks)
        self.added: SplitBarrier = _Meeting(segments, detector, ranks)
        piece, count = sharing.piece_bytes, sharing.addresses
        tables = [memory.view(np.int64) for memory in segments.each(8 * count)]
        self.process_memory = ProcessMemory(pids, tables, segments.index) if count else None
        numbers = [memory.view(np.int64) for memory in segments.each(8 * sharing.mapped)]
        self.mapped_memory = MappedMemory(pids, numbers, segments.index) if sharing.mapped else None
        self.inputs: Sequence[Sequence[np.ndarray]] = [segments.each(piece) for _ in range(2)]
        self.sums: Sequence[np.ndarray] = [segments.each(piece)[0] for _ in range(2)]

    def set_chunking(self, chunking: Chunking) -> None:
        """Set the chunking of later exchanges with other machines."""
        if self._reductions is not None:
            self._reductions.chunking = chunking

    def scratch(self, size_bytes: int) -> np.ndarray:
        if self._scratch.size < size_bytes:
            self._scratch = np.empty(size_bytes, np.uint8)
        return self._scratch[:size_bytes]

    def bring(self, numbers: Sequence[int], wait: Wait) -> list[list[int]]:
        """Exchange numbers among the node's ranks, for whom ``wait`` waits. Return the numbers of each rank."""
        self._lines.enter(numbers)
        wait(self._lines)
        return self._lines.read(len(numbers))

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
