"""Process-memory engine: ranks of one machine read each other's tensors directly in the other process's memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfdist.core.log import announce
from tfdist.core.settings import Settings
from tfdist.engine import _layout, _node_sum, _shared_memory_engine
from tfdist.engine._node_sum import Block, NodeSum, peer_errors
from tfdist.engine.engines import AllReduceContext, Bucket, BucketAllReduce, Engine
from tfdist.processes.process_memory import ProcessMemory, address
from tfdist.transport.interfaces import Channel, Node, NodeMemory, World

# Read from all other ranks together before adding: a machine may have hundreds of ranks.
_LANDING_BYTES = 1 << 22
_SMALLEST_BLOCK_BYTES = 1 << 14


@dataclasses.dataclass(frozen=True)
class ProcessMemoryEngine:
    """See ``engines.Engine``.

    Attributes:
      workers: number of threads with which a rank reads and adds, if the job runs on one machine.
    """

    name: ClassVar[str] = "direct"
    device: ClassVar[str] = "/device:CPU:0"

    workers: int = 1

    def needs(self, tensors: int) -> NodeMemory | None:
        return NodeMemory(0, tensors, _node_sum.NUMBERS)

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        node = channel.node
        if node is None or node.process_memory is None or node.mapped_memory is None:
            return None
        sizes, dtype = bucket.sizes or (), bucket.dtype
        offsets = _layout.offsets(sizes, dtype)
        landings = max(0, len(node.ranks) - 2)
        room = block_bytes(landings) // dtype.itemsize
        pieces = _layout.cut(sizes, offsets[:-1], node.own(offsets[-1], dtype.itemsize), room)
        shares = _node_sum.shares_of(node, self.workers, len(pieces))
        scratch = node.scratch(shares * landings * room * dtype.itemsize).view(dtype).reshape(shares, landings, room)
        reader = _Reader(bucket.what, node, node.process_memory, _Vectors(pieces, dtype.itemsize), scratch)
        return NodeSum(bucket, node, pieces, shares, reader)

    def settings(self) -> str:
        return "direct" + (f":workers={self.workers}" if self.workers > 1 else "")

    def __str__(self) -> str:
        threads = f" by {self.workers} threads" if self.workers > 1 else ""
        return f"by reading each other's memory{threads}"


def candidates(world: World, settings: Settings) -> Sequence[Engine]:
    """Return an engine for each number of threads, if a node's ranks can access each other's memory.

    If they cannot, return the shared-memory engine if ``direct`` was asked for, else nothing. Collective: all ranks."""
    obstacle = world.process_memory_obstacle() or world.mapped_memory_obstacle()
    if not obstacle:
        return [ProcessMemoryEngine(workers) for workers in _node_sum.workers(world, settings)]
    if settings.engine != "direct":
        return ()
    announce(f"the ranks of a machine cannot read each other's memory ({obstacle}): they use shared memory instead")
    return _shared_memory_engine.candidates(world, settings)


class _Reader:
    """See ``_node_sum.Reader``. The system copies from the other ranks' memory."""

    def __init__(self, what: str, node: Node, memory: ProcessMemory, vectors: _Vectors, landings: np.ndarray) -> None:
        self._what, self._node, self._memory, self._vectors, self._landings = what, node, memory, vectors, landings
        self._theirs: dict[int, np.ndarray] = {}
        self._ours: list[list[np.ndarray]] = []
        self._order: dict[int, int] = {}

    def prepare(self, sources: Sequence[np.ndarray]) -> None:
        self._memory.publish(sources)

    def begin(self, context: AllReduceContext, others: Sequence[int], whole: np.ndarray) -> None:
        vectors = self._vectors
        self._theirs = {i: vectors.sources(self._memory.addresses(i)) for i in others}
        # The first other rank's block is read into the place of the sum: it is among the first two that are added.
        first = vectors.places(whole)
        self._ours = [[first, *map(vectors.landings, areas)] for areas in self._landings]
        self._order = {other: place for place, other in enumerate(others)}

    def read(self, context: AllReduceContext, other: int, share: int, block: Block, area: np.ndarray) -> np.ndarray:
        place = self._order[other]
        targets = self._ours[share][place][block.vectors]
        with peer_errors(context, self._what, self._node.ranks[other]):
            self._memory.read(other, self._theirs[other][block.vectors], targets, block.size_bytes)
        landed: np.ndarray = self._landings[share][place - 1] if place else area
        return landed

    def done(self) -> None:
        self._memory.withdraw()


def block_bytes(landings: int) -> int:
    """Return how many bytes are read from each other rank at a time, if so many blocks need landing memory.

    The number is a multiple of every dtype's size.
    """
    return min(_node_sum.BLOCK_BYTES, max(_SMALLEST_BLOCK_BYTES, _LANDING_BYTES // max(1, landings) // 64 * 64))


class _Vectors:
    """Addresses and sizes (struct iovec) of all parts of all blocks, int64 [parts, 2]."""

    def __init__(self, pieces: Sequence[_layout.Piece], itemsize: int) -> None:
        parts = [(*part, piece[0][2].start) for piece in pieces for part in piece]
        self._tensors = np.array([tensor for tensor, _, _, _ in parts], np.int64)
        self._starts = np.array([part.start for _, part, _, _ in parts], np.int64) * itemsize
        self._places = np.array([place.start for _, _, place, _ in parts], np.int64) * itemsize
        self._landings = np.array([place.start - first for _, _, place, first in parts], np.int64) * itemsize
        self._sizes = np.array([part.stop - part.start for _, part, _, _ in parts], np.int64) * itemsize

    def sources(self, table: np.ndarray) -> np.ndarray:
        """Return the vectors in tensors that begin at the addresses ``table``, int64 [tensors]."""
        return np.stack([table[self._tensors] + self._starts, self._sizes], axis=1)

    def places(self, whole: np.ndarray) -> np.ndarray:
        """Return the vectors in the buffer."""
        return np.stack([address(whole) + self._places, self._sizes], axis=1)

    def landings(self, area: np.ndarray) -> np.ndarray:
        """Return the vectors in an area that holds one block."""
        return np.stack([address(area) + self._landings, self._sizes], axis=1)
