"""Mapped-memory engine: each rank copies its tensors into memory that the other ranks of its machine map and read.

``_process_memory_engine`` needs no such copy, but there the system looks up each page again at every read. Here the
system has nothing to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfdist.core.log import announce
from tfdist.core.settings import Settings
from tfdist.engine import _layout, _node_sum, _shared_memory_engine
from tfdist.engine._node_sum import STAGING, Block, NodeSum, peer_errors, together
from tfdist.engine.engines import AllReduceContext, Bucket, BucketAllReduce, Engine
from tfdist.processes.mapped_memory import MappedMemory
from tfdist.transport.interfaces import Channel, Node, NodeMemory, World


@dataclasses.dataclass(frozen=True)
class MappedMemoryEngine:
    """See ``engines.Engine``.

    Attributes:
      workers: number of threads with which a rank copies and adds, if the job runs on one machine.
      reads: True if the ranks may also read each other's process memory, as sparse rows do.
    """

    name: ClassVar[str] = "mapped"
    device: ClassVar[str] = "/device:CPU:0"

    workers: int = 1
    reads: bool = False

    def needs(self, tensors: int) -> NodeMemory | None:
        return NodeMemory(0, int(self.reads), _node_sum.NUMBERS)

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        node = channel.node
        if node is None or node.mapped_memory is None:
            return None
        sizes, dtype = bucket.sizes or (), bucket.dtype
        offsets = _layout.offsets(sizes, dtype)
        own, room = node.own(offsets[-1], dtype.itemsize), _node_sum.BLOCK_BYTES // dtype.itemsize
        pieces = _layout.cut(sizes, offsets[:-1], own, room)
        shares = _node_sum.shares_of(node, self.workers, len(pieces))
        before, behind = slice(0, own.start), slice(own.stop, offsets[-1])
        copied = [piece for part in (before, behind) for piece in _layout.cut(sizes, offsets[:-1], part, room)]
        reader = _Reader(bucket, node, node.mapped_memory, copied, shares, offsets[-1])
        return NodeSum(bucket, node, pieces, shares, reader)

    def settings(self) -> str:
        return "mapped" + (f":workers={self.workers}" if self.workers > 1 else "")

    def __str__(self) -> str:
        threads = f" by {self.workers} threads" if self.workers > 1 else ""
        return f"through mapped memory{threads}"


def candidates(world: World, settings: Settings) -> Sequence[Engine]:
    """Return an engine for each number of threads, if a node's ranks can map each other's memory.

    If they cannot, return the shared-memory engine if ``mapped`` was asked for, else nothing. Collective: all ranks."""
    obstacle = world.mapped_memory_obstacle()
    if obstacle and settings.engine == "mapped":
        announce(f"the ranks of a machine cannot map each other's memory ({obstacle}): they use shared memory instead")
        return _shared_memory_engine.candidates(world, settings)
    if obstacle:
        return ()
    reads = not world.process_memory_obstacle()
    return [MappedMemoryEngine(workers, reads) for workers in _node_sum.workers(world, settings)]


class _Reader:
    """See ``_node_sum.Reader``. Copies what the other ranks add of this rank's tensors into memory that they map."""

    def __init__(
        self,
        bucket: Bucket,
        node: Node,
        memory: MappedMemory,
        copied: Sequence[_layout.Piece],
        shares: int,
        elements: int,
    ) -> None:
        self._what, self._dtype, self._node, self._memory = bucket.what, bucket.dtype, node, memory
        self._elements = elements
        self._shares = [copied[n::shares] for n in range(shares)]
        self._theirs: dict[int, np.ndarray] = {}

    def prepare(self, sources: Sequence[np.ndarray]) -> None:
        staging = self._memory.staging(self._elements * self._dtype.itemsize)
        area = staging.array[: self._elements * self._dtype.itemsize].view(self._dtype)

        def copy(share: int) -> None:
            for piece in self._shares[share]:
                for tensor, part, place in piece:
                    np.copyto(area[place], sources[tensor][part])

        together(copy, len(self._shares))
        self._memory.publish(STAGING, staging)

    def begin(self, context: AllReduceContext, others: Sequence[int], whole: np.ndarray) -> None:
        # Map the memory of all ranks, also of those that do not contribute: its file is closed after this exchange.
        for other, rank in enumerate(self._node.ranks):
            if other != self._node.index:
                with peer_errors(context, self._what, rank):
                    self._theirs[other] = self._memory.staged(other, STAGING)[: whole.nbytes].view(self._dtype)

    def read(self, context: AllReduceContext, other: int, share: int, block: Block, area: np.ndarray) -> np.ndarray:
        return self._theirs[other][block.whole]

    def done(self) -> None:
        self._theirs = {}
