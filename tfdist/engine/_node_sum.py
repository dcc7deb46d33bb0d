"""Node sum: each rank of a node adds its slice of all ranks' tensors, and writes the sums into all ranks' buffers.

Each rank copies its tensors into memory that the other ranks map and read. They map its buffers, too, and write there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

import numpy as np

from tfdist.core import reduce_ops
from tfdist.engine import _layout
from tfdist.engine._buffers import BUFFERS
from tfdist.engine.engines import Bucket, BucketAllReduce, Context, Lost
from tfdist.processes.mapped_memory import RESULTS, STAGING, Memory
from tfdist.transport.errors import PeerError
from tfdist.transport.interfaces import Channel, Node

# A block is read from another rank, added and divided while it stays in a core's second-level cache.
BLOCK_BYTES = 1 << 19
_SMALLEST_BYTES = 1 << 16  # between machines smaller buckets need fewer messages through MPI


@dataclasses.dataclass(frozen=True)
class NodeSumEngine:
    """See ``engines.Engine``. Takes buckets of known sizes, unless they are small.

    Attributes:
      threads: number of threads with which this rank copies and adds, if the job runs on one machine.
      smallest_bytes: size of the smallest bucket that it takes.
    """

    threads: int = 1
    smallest_bytes: int = _SMALLEST_BYTES

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        if channel.node is None or bucket.sizes is None or bucket.size_bytes < self.smallest_bytes:
            return None
        return _NodeSum(bucket, bucket.sizes, channel.node, self.threads)

    def __str__(self) -> str:
        return f"through mapped memory by {self.threads} thread{'s' * (self.threads > 1)}"


class _NodeSum:
    """See ``engines.BucketAllReduce``. Adds one bucket over the ranks of a node, and over the nodes.

    When a rank has arrived, its tensors may be read and its buffers written. One barrier follows: before it no rank
    returns results or overwrites tensors, as other ranks may still read and write.
    """

    def __init__(self, bucket: Bucket, sizes: Sequence[int], node: Node, threads: int) -> None:
        self._what, self._node, self._op = bucket.what, node, bucket.op
        *starts, elements = _layout.offsets(sizes, bucket.dtype)
        self._wire = bucket.wire(elements)
        self.lost: Sequence[Lost] = (
            [] if self._wire is None else [(self._wire.lost, _layout.whole(sizes, bucket.dtype))]
        )
        room = BLOCK_BYTES // bucket.dtype.itemsize
        own = node.own(elements, bucket.dtype.itemsize)
        blocks, before, behind = (
            _layout.cut(sizes, starts, part, room) for part in (own, slice(0, own.start), slice(own.stop, elements))
        )
        # With other nodes one thread offers the sums to them, in order.
        shares = max(1, min(threads, len(blocks))) if node.alone else 1
        self._added = [blocks[i:k] for i, k in pairwise(len(blocks) * n // shares for n in range(shares + 1))]
        self._copied = [[*before, *behind][n::shares] for n in range(shares)]  # what the other ranks add
        self._results = Results(bucket.what, node)
        self.allocate = self._results.allocate

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        staging = self._node.memory.staging(whole.nbytes)
        area = staging.array[: whole.nbytes].view(whole.dtype)

        def copy(share: int) -> None:
            for block in self._copied[share]:
                for tensor, part, place in block:
                    np.copyto(area[place], sources[tensor][part])

        _together(copy, len(self._copied))
        self._node.memory.publish(STAGING, staging)
        self._results.publish(whole)

    def run(
        self,
        context: Context,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        with context.span("reduce", self._what):
            self._add(context, sources, whole, divisor)
            self._node.enter()
        with context.span("wait for copies", self._what):
            self._node.wait(context.place(f"{self._what}, copied"))
        self._node.memory.withdraw()

    def _add(self, context: Context, sources: Sequence[np.ndarray], whole: np.ndarray, divisor: int) -> None:
        node, present = self._node, set(context.present)
        sums = node.begin(whole, self._op, context.place(f"{self._what}, nodes"), self._wire)
        brought = {i: area[: whole.nbytes].view(whole.dtype) for i, area in staged(context, self._what, node).items()}
        contributing = [i for i, rank in enumerate(node.ranks) if rank in present]
        others = self._results.of_others(context, whole)
        in_parallel = len(self._added) > 1

        def hand_out(part: slice) -> None:
            for results in others:
                np.copyto(results[part], whole[part])

        def add(share: int) -> None:
            for block in self._added[share]:
                for tensor, part, place in block:
                    added = [sources[tensor][part] if i == node.index else brought[i][place] for i in contributing]
                    reduce_ops.combine(self._op, added, whole[place], divisor)
                stop = block[-1][2].stop
                for final in [slice(block[0][2].start, stop)] if in_parallel else sums.offer(stop):
                    hand_out(final)  # mostly while the block is in the cache

        _together(add, len(self._added))
        for final in () if in_parallel else sums.finish():
            hand_out(final)


class Results:
    """Buffers of each rank for the results of one exchange; the other ranks write into them.

    Args:
      what: description for messages.
      node: the ranks of the node.
    """

    def __init__(self, what: str, node: Node) -> None:
        self._what, self._node, self._memory = what, node, node.memory
        self._own: deque[Memory] = deque(maxlen=BUFFERS)
        # The latest buffers of each other rank, by their numbers.
        self._theirs: dict[int, dict[int, np.ndarray]] = {
            other: {} for other in range(len(node.ranks)) if other != node.index
        }

    def allocate(self, size_bytes: int) -> np.ndarray:
        """Memory for a buffer, uint8 [size_bytes], zeros."""
        self._own.append(Memory(size_bytes))
        return self._own[-1].array

    def publish(self, whole: np.ndarray) -> None:
        """Publish this rank's buffer for this step."""
        self._memory.publish(RESULTS, next(m for m in self._own if np.may_share_memory(m.array, whole)))

    def of_others(self, context: Context, whole: np.ndarray) -> list[np.ndarray]:
        """Return the other ranks' buffers for this step, cut to the size of this rank's."""
        found = []
        for other, known in self._theirs.items():
            number = self._memory.number(other, RESULTS)
            if number not in known:
                with _peer_errors(context, self._what, self._node.ranks[other]):
                    known[number] = self._memory.map(other, RESULTS)
            for earlier in sorted(known)[:-BUFFERS]:  # their maker drops them in this order, too
                del known[earlier]
            found.append(known[number][: whole.nbytes].view(whole.dtype))
        return found


def staged(context: Context, what: str, node: Node) -> dict[int, np.ndarray]:
    """Return the staging memory of each other rank of the node, uint8, by its number there.

    All map it, also of ranks that do not contribute: its file is closed after the exchange.
    """
    found = {}
    for other, rank in enumerate(node.ranks):
        if other != node.index:
            with _peer_errors(context, what, rank):
                found[other] = node.memory.staged(other, STAGING)
    return found


@contextlib.contextmanager
def _peer_errors(context: Context, what: str, rank: int) -> Iterator[None]:
    """Turn an OSError into a PeerError, while another rank's memory is mapped."""
    try:
        yield
    except OSError as error:
        raise PeerError(
            f"{context.place(what)}: the memory of rank {rank} cannot be mapped ({error}). Either the rank has "
            "ended, or TFDIST_ENGINE=mpi avoids this"
        ) from error


def _together(work: Callable[[int], None], shares: int) -> None:
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
