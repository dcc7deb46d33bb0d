"""Process-memory engine: ranks of one machine add each other's tensors where they lie; mostly the fastest."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.log import announce
from tfdist.core.settings import Settings
from tfdist.engine import _layout, _shared_memory_engine
from tfdist.engine.engines import AllReduceTurn, Bucket, BucketAllReduce, Engine, Lost
from tfdist.processes.process_memory import ProcessMemory, address
from tfdist.transport.interfaces import Channel, Node, NodeMemory, PeerError, World

# Read from another rank, added and divided while it stays in a core's second-level cache.
BLOCK_BYTES = 1 << 19
# What is read of all others before it is added: a machine may have hundreds of ranks.
_LANDING_BYTES = 1 << 22
_SMALLEST_BLOCK_BYTES = 1 << 14


@dataclasses.dataclass(frozen=True)
class ProcessMemoryEngine:
    """See ``engines.Engine``."""

    name: ClassVar[str] = "direct"
    device: ClassVar[str] = "/device:CPU:0"

    def needs(self, tensors: int) -> NodeMemory | None:
        return NodeMemory(0, tensors + 1)  # also published: the buffer of the results

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        node = channel.node
        memory = node and node.process_memory
        return _Direct(bucket, node, memory) if node and memory else None

    def settings(self) -> str:
        return "engine=direct"

    def __str__(self) -> str:
        return "each other's memory read where it lies"


def candidates(world: World, settings: Settings) -> Sequence[Engine]:
    """One, where the system lets the ranks of a node reach each other's memory; if it was asked for and does not, the
    shared-memory engine. Collective: all ranks."""
    obstacle = world.process_memory_obstacle()
    if not obstacle:
        return [ProcessMemoryEngine()]
    if settings.engine != "direct":
        return ()
    announce(f"the ranks of a machine cannot read each other's memory ({obstacle}): they use shared memory instead")
    return _shared_memory_engine.candidates(world, settings)


@contextlib.contextmanager
def reaching(turn: AllReduceTurn, what: str, rank: int) -> Iterator[None]:
    """While another rank's memory is read or written.

    Raises:
      PeerError: that fails.
    """
    try:
        yield
    except OSError as error:
        raise PeerError(
            f"{turn.place(what)}: the memory of rank {rank} cannot be reached ({error}): it has ended, or "
            "else TFDIST_ENGINE=shared avoids this"
        ) from error


class _Direct:
    """See ``engines.BucketAllReduce``. Each rank reads its slice of the others' tensors, and writes the result into
    their buffers.

    One meeting orders it: nobody hands out results, or writes tensors again, before all have read and written. (That
    tensors may be read, and buffers written, is what the arrival says.)
    """

    def __init__(self, bucket: Bucket, node: Node, memory: ProcessMemory) -> None:
        self._what, self._node, self._op, self._dtype = bucket.what, node, bucket.op, bucket.dtype
        self._memory = memory
        sizes, dtype = bucket.sizes or (), bucket.dtype
        offsets = _layout.offsets(sizes, dtype)
        self._own = node.own(offsets[-1], dtype.itemsize)
        self._wire = bucket.wire(offsets[-1])
        self.lost: Sequence[Lost] = [] if self._wire is None else [(self._wire.lost, _layout.whole(sizes, dtype))]
        landings = max(0, len(node.ranks) - 2)
        room = block_bytes(landings) // dtype.itemsize
        pieces = _layout.cut(sizes, offsets[:-1], self._own, room)
        self._blocks = _blocks(pieces, dtype.itemsize)
        self._vectors = _Vectors(pieces, dtype.itemsize)
        self._landing = node.scratch(landings * room * dtype.itemsize).view(dtype).reshape(landings, room)

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        self._memory.publish([whole, *sources])

    def run(
        self,
        turn: AllReduceTurn,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        with turn.span("reduce", self._what):
            self._add(turn, sources, whole, divisor)
            self._node.copied.enter()
        with turn.span("wait for copies", self._what):
            self._node.copied.wait(turn.place(f"{self._what}, copied"))
        self._memory.withdraw()

    def _add(self, turn: AllReduceTurn, sources: Sequence[np.ndarray], whole: np.ndarray, divisor: int) -> None:
        node = self._node
        present = set(turn.present)
        contributing = [i for i, rank in enumerate(node.ranks) if rank in present]
        others = [i for i in contributing if i != node.index]
        sums = node.begin(whole, self._op, turn.place(f"{self._what}, nodes"), self._wire)
        vectors = self._vectors
        theirs = {i: vectors.sources(self._memory.addresses(i)[1:]) for i in others}
        # The first of the others lands where the sum will be: it is among the first two that are added.
        ours = dict(zip(others, [vectors.places(whole), *map(vectors.landings, self._landing)], strict=False))
        for block in self._blocks:
            area = whole[block.whole]
            landed = dict(zip(others, [area, *self._landing], strict=False))
            for i in others:
                with reaching(turn, self._what, self._node.ranks[i]):
                    self._memory.read(i, theirs[i][block.vectors], ours[i][block.vectors], block.size_bytes)
            for tensor, part, here in block.parts:
                contributions = [sources[tensor][part] if i == node.index else landed[i][here] for i in contributing]
                reduce_ops.combine(self._op, contributions, area[here], divisor)
            for final in sums.offer(block.whole.stop):
                self._hand_out(turn, whole, final)  # mostly while it is in the cache
        for final in sums.finish():
            self._hand_out(turn, whole, final)

    def _hand_out(self, turn: AllReduceTurn, whole: np.ndarray, part: slice) -> None:
        for i in range(len(self._node.ranks)):
            if i != self._node.index:
                with reaching(turn, self._what, self._node.ranks[i]):
                    buffer = int(self._memory.addresses(i)[0])
                    self._memory.write(i, whole[part], buffer + part.start * self._dtype.itemsize)


def block_bytes(landings: int) -> int:
    """How much of each other rank's tensors is read at a time, where so many contributions land in memory of their own.

    They must be multiples of every dtype's size.
    """
    return min(BLOCK_BYTES, max(_SMALLEST_BLOCK_BYTES, _LANDING_BYTES // max(1, landings) // 64 * 64))


@dataclasses.dataclass
class _Block:
    """Stretches of tensors that lie together in a buffer, no more than stays in a core's cache.

    Attributes:
      whole: the elements of the buffer from the first part to the last.
      parts: (tensor, elements of it, elements of ``whole``).
      vectors: the parts' numbers among those of all blocks.
      size_bytes: of all parts.
    """

    whole: slice
    parts: Sequence[tuple[int, slice, slice]]
    vectors: slice
    size_bytes: int


def _blocks(pieces: Sequence[_layout.Piece], itemsize: int) -> list[_Block]:
    blocks = []
    seen = 0
    for piece in pieces:
        whole = slice(piece[0][2].start, piece[-1][2].stop)
        parts = [(tensor, part, _moved(place, whole)) for tensor, part, place in piece]
        elements = sum(part.stop - part.start for _, part, _ in piece)
        blocks.append(_Block(whole, parts, slice(seen, seen + len(piece)), elements * itemsize))
        seen += len(piece)
    return blocks


def _moved(place: slice, whole: slice) -> slice:
    return slice(place.start - whole.start, place.stop - whole.start)


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
        """In tensors that begin at the given addresses: int64 [tensors]."""
        return np.stack([table[self._tensors] + self._starts, self._sizes], axis=1)

    def places(self, whole: np.ndarray) -> np.ndarray:
        """In the buffer."""
        return np.stack([address(whole) + self._places, self._sizes], axis=1)

    def landings(self, area: np.ndarray) -> np.ndarray:
        """In an area that holds one block."""
        return np.stack([address(area) + self._landings, self._sizes], axis=1)
