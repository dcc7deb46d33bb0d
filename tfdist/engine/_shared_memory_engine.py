"""Shared-memory engine: ranks of one machine add in staging areas, where process memory is refused or slower."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import aligned
from tfdist.core.settings import Settings
from tfdist.engine import _layout
from tfdist.engine.engines import AllReduceContext, Bucket, BucketAllReduce, Engine
from tfdist.transport.interfaces import Channel, Node, NodeMemory, World

PIECES_BYTES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
_LARGE_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True)
class SharedMemoryEngine:
    """See ``engines.Engine``.

    Attributes:
      piece_bytes: bytes that are added at a time; each of two staging areas holds this much.
    """

    name: ClassVar[str] = "shared"
    device: ClassVar[str] = "/device:CPU:0"

    piece_bytes: int

    def needs(self, tensors: int) -> NodeMemory | None:
        return NodeMemory(self.piece_bytes, 0)

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        return _Staged(bucket, channel.node) if channel.node else None

    def settings(self) -> str:
        return f"shared:piece_kb={self.piece_bytes / 1024:g}"

    def __str__(self) -> str:
        return f"through shared memory in pieces of {self.piece_bytes // 1024} KiB"


def candidates(world: World, settings: Settings) -> Sequence[Engine]:
    """Return an engine for each size of piece. Collective: all ranks."""
    pieces = [aligned(int(float(settings.piece_kb) * 1024))] if settings.piece_kb else PIECES_BYTES
    # Where a better engine exists, large pieces would take much of /dev/shm only to be measured.
    better = settings.engine == "auto" and not (world.mapped_memory_obstacle() and world.process_memory_obstacle())
    if better and len(world.topology.nodes) > 1:
        return ()  # the network takes longer than any of these engines
    return [SharedMemoryEngine(piece) for piece in pieces if not (better and piece > _LARGE_BYTES)]


class _Staged:
    """See ``engines.BucketAllReduce``. Each piece is copied into shared memory, added by slices, and copied out.

    Two staging areas take turns, so each is overwritten two pieces later. By then all ranks have copied in the piece
    between, which each rank does after it has added this piece. The same holds for the areas of the sums.
    """

    def __init__(self, bucket: Bucket, node: Node) -> None:
        self._what, self._node, self._op = bucket.what, node, bucket.op
        dtype = bucket.dtype
        self._narrow = reduce_ops.is_narrow(dtype)
        self._inputs = [[x.view(dtype) for x in area] for area in node.inputs]
        self._sums = [x.view(dtype) for x in node.sums]
        self._pieces = _layout.pack(bucket.sizes or (), self._sums[0].size)
        self._wires = [bucket.wire(piece[-1][2].stop) for piece in self._pieces]
        self.lost = [(w.lost, piece) for w, piece in zip(self._wires, self._pieces, strict=True) if w is not None]

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        pass

    def run(
        self,
        context: AllReduceContext,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        before, after = (1, divisor) if self._narrow else (divisor, 1)  # dividing before saves a pass, but rounds
        pieces = self._pieces
        for number, piece in enumerate(pieces):
            if number == 0:
                self._copy_in(context, number, piece, sources, before)
            self._add(context, number, piece[-1][2].stop, after)
            # Between two barriers there is always something to copy, so a short delay of one rank delays no other rank.
            if number + 1 < len(pieces):
                self._copy_in(context, number + 1, pieces[number + 1], sources, before)
            self._copy_out(context, number, piece, targets)

    def _copy_in(
        self, context: AllReduceContext, number: int, piece: _layout.Piece, sources: Sequence[np.ndarray], divisor: int
    ) -> None:
        own = self._inputs[number % 2][self._node.index]
        with context.span("copy in", self._what):
            for tensor, part, staged in piece:
                reduce_ops.copy(sources[tensor][part], own[staged], divisor)
            self._node.copied.enter()

    def _add(self, context: AllReduceContext, number: int, elements: int, divisor: int) -> None:
        node, sums = self._node, self._sums[number % 2]
        with context.span("wait for copies", self._what):
            node.copied.wait(context.place(f"{self._what}, copied"))
        with context.span("reduce", self._what):
            own = node.own(elements, sums.itemsize)
            present = set(context.present)
            contributions = [self._inputs[number % 2][i][own] for i, rank in enumerate(node.ranks) if rank in present]
            reduce_ops.combine(self._op, contributions, sums[own], divisor)
            place = context.place(f"{self._what}, nodes")
            for _ in node.begin(sums[:elements], self._op, place, self._wires[number]).finish():
                pass
            node.added.enter()

    def _copy_out(
        self, context: AllReduceContext, number: int, piece: _layout.Piece, targets: Sequence[np.ndarray]
    ) -> None:
        sums = self._sums[number % 2]
        with context.span("wait for sums", self._what):
            self._node.added.wait(context.place(f"{self._what}, added"))
        with context.span("copy out", self._what):
            for tensor, part, staged in piece:
                np.copyto(targets[tensor][part], sums[staged])
