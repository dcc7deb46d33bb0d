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
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.core.rounded_wire import Wire
from tfdist.core.topology import Shard
from tfdist.mpi._array_messages import ArrayMessages, EncodedMessages
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
        encoding = ArrayMessages(array) if wire is None else EncodedMessages(array, wire)
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


class _Piece(NamedTuple):
    """Some elements of a shard.

    Attributes:
      ranks: ranks of the shard.
      parts: slice of the array for each rank.
      whole: slice of the array with all elements of the piece.
      tag: tag of the contributions; the results have the next tag.
    """

    ranks: Sequence[int]
    parts: Sequence[slice]
    whole: slice
    tag: int


class _UnderWay:
    """A piece whose messages are under way.

    Args:
      whole: slice of the array with all elements of the piece.
      steps: function that returns a generator of the requests for which it waits; it is finished when the piece is. It
        adds to its argument what must be kept after an error of MPI, which may still write there.
    """

    def __init__(self, whole: slice, steps: Callable[[list[Any]], Iterator[list[Any]]]) -> None:
        self.whole = whole
        self.over = False
        self._kept: list[Any] = []
        self._steps = steps(self._kept)
        self._pending: list[Any] = []

    def advance(self) -> bool:
        """Go on as far as messages have come and gone. Return whether there was any progress."""
        moved = False
        while not self.over and MPI.Request.Testall(self._pending):
            pending = next(self._steps, None)
            self.over, self._pending = pending is None, pending or []
            moved = True
        return moved


class InterNodeReduction:
    """One reduction: a ``stall_detection.Request`` that is complete whenever a message has arrived or has been sent."""

    def __init__(self, owner: InterNodeReductions, encoding: ArrayMessages, op: Op, place: str, divisor: int) -> None:
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
        self._under_way: list[_UnderWay] = []

    def offer(self, stop: int) -> list[slice]:
        """Mark this rank's elements before ``stop`` as ready to be combined.

        Returns:
          The elements that have been combined over all ranks since the last call.
        """
        self._ready = stop
        self.Test()
        finished = [piece.whole for piece in self._under_way if piece.over]
        self._under_way = [piece for piece in self._under_way if not piece.over]
        return finished

    def finish(self) -> Iterator[slice]:
        """Mark all elements as ready, and yield elements when they have been combined.

        Raises:
          PeerError: for too long no message has arrived or has been sent.
        """
        yield from self.offer(self._array.size)
        while self._next or self._under_way:
            self._owner.detector.wait(self, self._place, self._owner.awaited, moving=True)
            yield from self.offer(self._array.size)
        self._owner.forget()

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        """Start everything that is ready. Return whether there was any progress."""
        moved = False
        while self._next and len(self._under_way) < PIECES and self._next.whole.stop <= self._ready:
            self._under_way.append(_UnderWay(self._next.whole, functools.partial(self._exchange, self._next)))
            self._next = next(self._left, None)
        try:
            for piece in self._under_way:
                moved = piece.advance() or moved
        except MPI.Exception as error:
            raise broken(self._place, error) from error
        return moved

    def _exchange(self, piece: _Piece, kept: list[Any]) -> Iterator[list[Any]]:
        """Send the others their parts, add this rank's part, and send its sum. ``kept`` holds the messages' memory."""
        comm, encoding = self._comm, self._encoding
        index = piece.ranks.index(comm.rank)
        own = piece.parts[index]
        others = [(rank, part) for rank, part in zip(piece.ranks, piece.parts, strict=True) if rank != comm.rank]
        asked = [(rank, part) for rank, part in others if part.stop > part.start]
        landing, received = None, []
        if own.stop > own.start:
            size_bytes = encoding.size_bytes(own.stop - own.start)
            landing = self._owner.landing(size_bytes * len(others))
            areas = [landing[number * size_bytes : (number + 1) * size_bytes] for number in range(len(others))]
            kept += areas
            received = [
                comm.Irecv([area, MPI.BYTE], rank, piece.tag) for area, (rank, _) in zip(areas, others, strict=True)
            ]
        messages = [encoding.outgoing(part) for _, part in asked]
        kept += [received, messages]
        sent = [
            comm.Isend([message, MPI.BYTE], rank, piece.tag) for message, (rank, _) in zip(messages, asked, strict=True)
        ]
        yield received
        summed = []
        if landing is not None:
            sums = self._array[own]
            contributions = [encoding.contribution(area, sums.size) for area in areas]
            contributions.insert(index, sums)
            # In the order of the ranks, on any rank: so the bits do not depend on the cuts of the array.
            result = sums if index < 2 else contributions[0]
            reduce_ops.combine(self._op, contributions, result, self._divisor)
            if result is not sums:
                sums[:] = result
            message = encoding.settled(own)
            summed = [comm.Isend([message, MPI.BYTE], rank, piece.tag + 1) for rank, _ in others]
            del contributions, result  # decoded copies, which the waits below do not need
            self._owner.give_back(landing)
        yield sent  # the sums land where the contributions were
        landed = [(rank, *encoding.incoming(part)) for rank, part in asked]
        kept += [sent, summed, landed]
        yield [comm.Irecv([area, MPI.BYTE], rank, piece.tag + 1) for rank, area, _ in landed]
        for _, _, then in landed:
            then()
        yield summed


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
            stop = min(start + room, whole.stop)
            parts = [
                slice(start + part.start, start + part.stop)
                for part in reduce_ops.slices(stop - start, len(shard.ranks), itemsize)
            ]
            yield _Piece(shard.ranks, parts, slice(start, stop), 2 * (number % _TAGS))
            number += 1
