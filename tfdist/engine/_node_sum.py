"""Node sum: each rank of a node adds its slice of all ranks' tensors, and writes the sums into all ranks' buffers.

All ranks of the node map these buffers. Each engine reads the other ranks' tensors in its own way: see ``Reader``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Protocol

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.settings import Settings
from tfdist.core.system import processors
from tfdist.engine import _layout
from tfdist.engine._buffers import BUFFERS
from tfdist.engine.engines import AllReduceContext, Bucket, Lost
from tfdist.processes import mapped_memory
from tfdist.processes.devices import threads_of
from tfdist.processes.mapped_memory import MappedMemory, Memory
from tfdist.processes.process_memory import address
from tfdist.transport.interfaces import Node, PeerError, World

# A block is read from another rank, added and divided while it stays in a core's second-level cache.
BLOCK_BYTES = 1 << 19
_WORKERS = (1, 2, 4, 8)
# Memory that each rank publishes for the other ranks to map.
RESULTS, STAGING = 0, 1
NUMBERS = 2 * mapped_memory.NUMBERS


def workers(world: World, settings: Settings) -> Sequence[int]:
    """Return the numbers of threads to choose from, up to the cores of each rank. Collective: all ranks."""
    if settings.workers:
        return [int(float(settings.workers))]
    if len(world.topology.nodes) > 1:
        return [1]
    cores = world.control.all_gather_object(processors(), "the comparison of their cores")
    least = min(threads_of(own, cores) for own in cores)
    return [count for count in _WORKERS if count <= least]


@dataclasses.dataclass
class Block:
    """Parts of tensors that lie together in a buffer and fit into a core's cache.

    Attributes:
      whole: slice of the buffer from the first part to the last.
      parts: (tensor's number, slice of the tensor, slice of ``whole``) of each part.
      vectors: numbers of the parts among the parts of all blocks.
      size_bytes: bytes of all parts.
    """

    whole: slice
    parts: Sequence[tuple[int, slice, slice]]
    vectors: slice
    size_bytes: int


class Reader(Protocol):
    """Gives a rank the tensors of the other ranks of its node, for one bucket."""

    def prepare(self, sources: Sequence[np.ndarray]) -> None:
        """Take this rank's tensors, flat, before it arrives."""

    def begin(self, context: AllReduceContext, others: Sequence[int], whole: np.ndarray) -> None:
        """Begin after all have arrived: ``others`` contribute (numbers in the node), ``whole`` is the sums' buffer."""

    def read(self, context: AllReduceContext, other: int, share: int, block: Block, area: np.ndarray) -> np.ndarray:
        """Return a block of another rank's tensors, laid out as in the buffer.

        Args:
          context: context of the exchange.
          other: number of that rank in the node.
          share: number of the calling thread.
          block: the block.
          area: the buffer's part for this block; the first of ``others`` may be read into it.
        """

    def done(self) -> None:
        """End reading: all ranks have read."""


class NodeSum:
    """See ``engines.BucketAllReduce``. Adds one bucket over the ranks of a node, and over the nodes.

    When a rank has arrived, its tensors may be read and its buffers written. One barrier follows: before it no rank
    returns results or overwrites tensors, as other ranks may still read and write.

    Args:
      bucket: the tensors to add.
      node: the ranks of the node.
      pieces: pieces that this rank adds, as made by ``_layout.cut``.
      shares: number of threads.
      reader: reader of the other ranks' tensors.
    """

    def __init__(
        self, bucket: Bucket, node: Node, pieces: Sequence[_layout.Piece], shares: int, reader: Reader
    ) -> None:
        assert node.mapped_memory is not None
        self._what, self._node, self._op = bucket.what, node, bucket.op
        sizes, dtype = bucket.sizes or (), bucket.dtype
        self._wire = bucket.wire(_layout.offsets(sizes, dtype)[-1])
        self.lost: Sequence[Lost] = [] if self._wire is None else [(self._wire.lost, _layout.whole(sizes, dtype))]
        self._shares = _shared_out(_blocks(pieces, dtype.itemsize), shares)
        self._reader = reader
        self._results = _Results(bucket.what, node, node.mapped_memory)
        self.allocate = self._results.allocate

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        self._reader.prepare(sources)
        self._results.publish(whole)

    def run(
        self,
        context: AllReduceContext,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        with context.span("reduce", self._what):
            self._add(context, sources, whole, divisor)
            self._node.copied.enter()
        with context.span("wait for copies", self._what):
            self._node.copied.wait(context.place(f"{self._what}, copied"))
        self._reader.done()
        self._results.withdraw()

    def _add(self, context: AllReduceContext, sources: Sequence[np.ndarray], whole: np.ndarray, divisor: int) -> None:
        node, reader = self._node, self._reader
        present = set(context.present)
        contributing = [i for i, rank in enumerate(node.ranks) if rank in present]
        others = [i for i in contributing if i != node.index]
        sums = node.begin(whole, self._op, context.place(f"{self._what}, nodes"), self._wire)
        reader.begin(context, others, whole)
        theirs = self._results.of_others(context, whole)
        alone = len(self._shares) > 1  # with other machines one thread offers the sums to them, in order

        def hand_out(part: slice) -> None:
            for results in theirs:
                np.copyto(results[part], whole[part])

        def add(share: int) -> None:
            for block in self._shares[share]:
                area = whole[block.whole]
                read = {i: reader.read(context, i, share, block, area) for i in others}
                for tensor, part, here in block.parts:
                    added = [sources[tensor][part] if i == node.index else read[i][here] for i in contributing]
                    reduce_ops.combine(self._op, added, area[here], divisor)
                for final in [block.whole] if alone else sums.offer(block.whole.stop):
                    hand_out(final)  # mostly while the block is in the cache

        together(add, len(self._shares))
        for final in () if alone else sums.finish():
            hand_out(final)


class _Results:
    """Buffers of each rank for the results of one bucket; the other ranks write into them."""

    def __init__(self, what: str, node: Node, memory: MappedMemory) -> None:
        self._what, self._node, self._memory = what, node, memory
        self._own: deque[Memory] = deque(maxlen=BUFFERS)
        # The most recently used buffers of each other rank, by their numbers.
        self._theirs: dict[int, dict[int, np.ndarray]] = {
            other: {} for other in range(len(node.ranks)) if other != node.index
        }

    def allocate(self, size_bytes: int) -> np.ndarray:
        """Memory for a buffer, uint8 [size_bytes], zeros."""
        self._own.append(Memory(size_bytes))
        return self._own[-1].array

    def publish(self, whole: np.ndarray) -> None:
        """Publish this rank's buffer for this step."""
        self._memory.publish(RESULTS, next(m for m in self._own if address(m.array) == address(whole)))

    def of_others(self, context: AllReduceContext, whole: np.ndarray) -> list[np.ndarray]:
        """Return the other ranks' buffers for this step, cut to the size of this rank's."""
        found = []
        for other, known in self._theirs.items():
            number = self._memory.number(other, RESULTS)
            if number not in known:
                with peer_errors(context, self._what, self._node.ranks[other]):
                    known[number] = self._memory.map(other, RESULTS)
            known[number] = known.pop(number)  # now the most recently used
            for earlier in list(known)[:-BUFFERS]:
                del known[earlier]
            found.append(known[number][: whole.nbytes].view(whole.dtype))
        return found

    def withdraw(self) -> None:
        """Withdraw the buffer: all ranks have written."""
        self._memory.withdraw()


@contextlib.contextmanager
def peer_errors(context: AllReduceContext, what: str, rank: int) -> Iterator[None]:
    """Turn an OSError into a PeerError, while another rank's memory is read, written or mapped.

    Raises:
      PeerError: the access fails.
    """
    try:
        yield
    except OSError as error:
        raise PeerError(
            f"{context.place(what)}: the memory of rank {rank} cannot be reached ({error}). Either the rank has "
            "ended, or TFDIST_ENGINE=shared avoids this"
        ) from error


def _blocks(pieces: Sequence[_layout.Piece], itemsize: int) -> list[Block]:
    """Make a block of each piece; ``_layout.cut`` makes the pieces."""
    made = []
    seen = 0
    for piece in pieces:
        whole = slice(piece[0][2].start, piece[-1][2].stop)
        parts = [(tensor, part, _moved(place, whole)) for tensor, part, place in piece]
        elements = sum(part.stop - part.start for _, part, _ in piece)
        made.append(Block(whole, parts, slice(seen, seen + len(piece)), elements * itemsize))
        seen += len(piece)
    return made


def _moved(place: slice, whole: slice) -> slice:
    return slice(place.start - whole.start, place.stop - whole.start)


def shares_of(node: Node, threads: int, blocks: int) -> int:
    """Return the number of threads that add so many blocks; 1 if there are other nodes."""
    return max(1, min(threads, blocks)) if node.alone else 1


def _shared_out(blocks: Sequence[Block], shares: int) -> list[Sequence[Block]]:
    """Split the blocks evenly into contiguous shares."""
    return [blocks[start:stop] for start, stop in pairwise(len(blocks) * n // shares for n in range(shares + 1))]


def together(work: Callable[[int], None], shares: int) -> None:
    """Do the first share in this thread and the other shares in other threads; wait for all."""

    def quietly(share: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # NumPy keeps this state per thread
            work(share)

    others = [_threads(shares - 1).submit(quietly, share) for share in range(1, shares)]
    try:
        work(0)
    finally:
        wait(others)  # also after an error: they read memory that the caller releases
    for other in others:
        other.result()


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Return the process's thread pool, which all its collectives use."""
    return ThreadPoolExecutor(count, "tfdist adds")
