"""Inter-node reduction: combines an array of some ranks over a network, piece by piece, as its pieces become ready.

The ranks divide each piece. Each rank sends the other parts to their ranks, combines its own part, and sends the result
back. This is a reduce-scatter and an all-gather, which send the fewest bytes over each link (Thakur, Rabenseifner,
Gropp 2005). The messages are direct, so it takes two latencies with any number of ranks. One rank combines an element,
in one order, and rounds it once, so all ranks get the same bits. Several pieces are in flight at the same time, so that
both directions of a link are in use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.core.topology import Shard
from tfdist.core.wires import Wire
from tfdist.transport.array_messages import Encoded, Encoding, Unencoded, nothing
from tfdist.transport.stall_detection import StallDetector, broken

# The fastest at 10 Gbit/s of messages of 64 KiB to 1 MiB and 4 to 16 pieces. At 1 Gbit/s all differ by noise.
MESSAGE_BYTES = 1 << 18
PIECES = 4  # in flight at a time
_LANDING_BYTES = 1 << 24  # memory for the messages of all pieces in flight: there may be hundreds of ranks
_SMALLEST_PART_BYTES = 1 << 14
_TAGS = 1 << 14  # a piece uses two tags; every MPI has twice as many


class InterNodeReductions:
    """Inter-node reductions of one communicator, one at a time.

    Args:
      comm: communicator of the shards' ranks.
      detector: stall detector of this rank.
      shards: shards in which this rank takes part, ascending.
      earlier: all shards before these.
      ranks: ranks of the communicator, by their numbers in the job.
    """

    def __init__(
        self,
        comm: Any,
        detector: StallDetector,
        shards: Sequence[Shard],
        earlier: Sequence[Shard],
        ranks: Sequence[int],
    ) -> None:
        self.comm = comm
        self.detector = detector
        self.shards = shards
        self.earlier = earlier
        self.awaited = sorted({ranks[rank] for shard in shards for rank in shard.ranks})
        self._landings: list[np.ndarray] = []
        self._last: InterNodeReduction | None = None

    def begin(
        self, array: np.ndarray, op: Op, place: str, divisor: int = 1, wire: Wire | None = None
    ) -> InterNodeReduction:
        """Begin to combine this rank's shards of an array, in place. Collective: the shards' ranks.

        Args:
          array: [n], contiguous.
          op: operation.
          place: description for messages, the same on every rank.
          divisor: number by which the results are divided before they are rounded.
          wire: encoder of the messages; None: no encoding.
        """
        # The reduction is kept until it is finished: after this rank gives up, MPI may still write to its memory.
        encoding = Unencoded(array) if wire is None else Encoded(array, wire)
        self._last = InterNodeReduction(self, encoding, op, place, divisor)
        return self._last

    def forget(self) -> None:
        """Drop the last reduction, which is finished."""
        self._last = None

    def landing(self, size_bytes: int) -> np.ndarray:
        """Return memory for incoming messages, uint8 [size_bytes or more]. The caller gives it back."""
        for index, area in enumerate(self._landings):
            if area.size >= size_bytes:
                return self._landings.pop(index)
        self._landings.clear()  # too small
        return np.empty(size_bytes, np.uint8)

    def give_back(self, area: np.ndarray) -> None:
        """Take memory of ``landing`` back."""
        self._landings.append(area)


class _Piece:
    """Some elements of a shard.

    Attributes:
      ranks: ranks of the shard.
      parts: slice of the array for each rank.
      whole: slice of the array with all elements of the piece.
      tag: tag of the contributions; the results have the next tag.
    """

    def __init__(self, shard: Shard, tag: int, whole: slice, itemsize: int) -> None:
        self.ranks = shard.ranks
        self.whole = whole
        self.parts = [
            slice(whole.start + part.start, whole.start + part.stop)
            for part in reduce_ops.slices(whole.stop - whole.start, len(shard.ranks), itemsize)
        ]
        self.tag = tag
        self.outstanding = 0
        self.awaited = 0
        self.landing: np.ndarray | None = None
        self.landed: list[np.ndarray] = []


def _and_keep(then: Callable[[], None], message: np.ndarray) -> None:
    """Call ``then``. Until then the argument keeps the message alive, because MPI reads it until it is sent."""
    then()


class InterNodeReduction:
    """One reduction: a ``stall_detection.Request`` that is complete whenever a message has arrived or has been sent."""

    def __init__(self, owner: InterNodeReductions, encoding: Encoding, op: Op, place: str, divisor: int) -> None:
        self._owner = owner
        self._comm = owner.comm
        self._encoding = encoding
        self._array = array = encoding.array
        self._op: Op = op
        self._divisor = divisor
        self._place = place
        self._left = _pieces(owner, array.size, array.itemsize, encoding.sent_itemsize)
        self._next = next(self._left, None)
        self._ready = 0
        self._open = 0
        self._requests: list[Any] = []
        self._then: list[Callable[[], None]] = []
        self._finished: list[slice] = []

    def offer(self, stop: int) -> list[slice]:
        """Mark this rank's elements before ``stop`` as ready to be combined.

        Returns:
          The elements that have been combined over all ranks since the last call.
        """
        self._ready = stop
        self.Test()
        finished, self._finished = self._finished, []
        return finished

    def finish(self) -> Iterator[slice]:
        """Mark all elements as ready, and yield elements when they have been combined.

        Raises:
          PeerError: for too long no message has arrived or has been sent.
        """
        yield from self.offer(self._array.size)
        while self._next or self._open:
            self._owner.detector.wait(self, self._place, self._owner.awaited, moving=True)
            yield from self.offer(self._array.size)
        self._owner.forget()

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        """Start everything that is ready. Return whether there was any progress."""
        before = self._next
        while self._next and self._open < PIECES and self._next.whole.stop <= self._ready:
            self._begin(self._next)
            self._next = next(self._left, None)
        try:
            done = MPI.Request.Testsome(self._requests) if self._requests else None
        except MPI.Exception as error:
            raise broken(self._place, error) from error
        if done:
            then = [self._then[index] for index in done]
            for index in sorted(done, reverse=True):
                del self._requests[index], self._then[index]
            for follow in then:
                follow()
        return bool(done) or self._next is not before

    def _begin(self, piece: _Piece) -> None:
        self._open += 1
        piece.outstanding = 1  # this method
        rank = self._comm.rank
        own = piece.parts[piece.ranks.index(rank)]
        others = [(other, part) for other, part in zip(piece.ranks, piece.parts, strict=True) if other != rank]
        if own.stop > own.start:
            size_bytes = self._encoding.size_bytes(own.stop - own.start)
            piece.awaited = len(others)
            piece.landing = self._owner.landing(size_bytes * len(others))
            for number, (other, _) in enumerate(others):
                area = piece.landing[number * size_bytes : (number + 1) * size_bytes]
                piece.landed.append(area)
                request = self._comm.Irecv([area, MPI.BYTE], other, piece.tag)
                self._add(request, piece, functools.partial(self._arrived, piece, own, others))
        for other, part in others:
            if part.stop > part.start:
                gone = functools.partial(self._gone, piece, other, part)
                self._send(self._encoding.outgoing(part), other, piece.tag, piece, gone)
        self._one_less(piece)

    def _arrived(self, piece: _Piece, own: slice, others: Sequence[tuple[int, slice]]) -> None:
        piece.awaited -= 1
        if piece.awaited:
            return
        sums = self._array[own]
        contributions = [self._encoding.contribution(area, sums.size) for area in piece.landed]
        contributions.insert(piece.ranks.index(self._comm.rank), sums)
        # In the order of the ranks, on any rank: so the bits do not depend on the cuts of the array.
        result = contributions[0] if sums is not contributions[1] else sums
        reduce_ops.combine(self._op, contributions, result, self._divisor)
        if result is not sums:
            sums[:] = result
        assert piece.landing is not None
        self._owner.give_back(piece.landing)
        piece.landed, piece.landing = [], None
        message = self._encoding.settled(own)
        for other, _ in others:
            self._send(message, other, piece.tag + 1, piece, nothing)

    def _gone(self, piece: _Piece, other: int, part: slice) -> None:
        """Receive the sum into the part, after this rank's contribution has been sent to the other rank."""
        area, then = self._encoding.incoming(part)
        self._add(self._comm.Irecv([area, MPI.BYTE], other, piece.tag + 1), piece, then)

    def _send(self, message: np.ndarray, other: int, tag: int, piece: _Piece, then: Callable[[], None]) -> None:
        request = self._comm.Isend([message, MPI.BYTE], other, tag)
        self._add(request, piece, functools.partial(_and_keep, then, message))

    def _add(self, request: Any, piece: _Piece, then: Callable[[], None]) -> None:
        piece.outstanding += 1
        self._requests.append(request)
        self._then.append(functools.partial(self._done, piece, then))

    def _done(self, piece: _Piece, then: Callable[[], None]) -> None:
        then()
        self._one_less(piece)

    def _one_less(self, piece: _Piece) -> None:
        piece.outstanding -= 1
        if not piece.outstanding:
            self._open -= 1
            self._finished.append(piece.whole)


def _pieces(owner: InterNodeReductions, elements: int, itemsize: int, sent_itemsize: int) -> Iterator[_Piece]:
    nodes = len(owner.shards[0].ranks)
    part_bytes = min(MESSAGE_BYTES, max(_SMALLEST_PART_BYTES, _LANDING_BYTES // (PIECES * max(1, nodes - 1))))
    room = part_bytes // sent_itemsize * nodes
    stretches = [reduce_ops.stretch(elements, shard.start, shard.stop, itemsize) for shard in owner.earlier]
    number = sum(len(range(whole.start, whole.stop, room)) for whole in stretches)
    for shard in owner.shards:
        whole = reduce_ops.stretch(elements, shard.start, shard.stop, itemsize)
        for start in range(whole.start, whole.stop, room):
            # The number counts the pieces of all shards, because two ranks may have several shards in common.
            yield _Piece(shard, 2 * (number % _TAGS), slice(start, min(start + room, whole.stop)), itemsize)
            number += 1
