"""InterNodeReduction: an array of some ranks combined piece by piece, over a network, as its pieces become ready.

A piece is divided between the ranks. Each sends the others theirs, combines what comes for its own part, and sends that
back: reduce-scatter and all-gather, by which least bytes pass each link (Thakur, Rabenseifner, Gropp 2005), in direct
messages, so that it takes two latencies with any number of ranks. An element is combined by one rank, in one order,
rounded once, and all get the same bits. Several pieces are under way at a time: both directions of a link are in use.
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
from tfdist.core.wires.format import Wire
from tfdist.transport.array_messages import Encoded, Encoding, Unencoded, nothing
from tfdist.transport.interfaces import Chunking
from tfdist.transport.stall_detection import StallDetector, broken

_LANDING_BYTES = 1 << 24  # of all pieces under way: there may be hundreds of ranks
_SMALLEST_PART_BYTES = 1 << 14
_TAGS = 1 << 14  # every MPI has twice as many


class InterNodeReductions:
    """InterNodeReductions of one communicator, one at a time.

    Args:
      comm: its ranks are those of the shards.
      detector: this rank's knowledge of the others.
      shards: what this rank takes part in, ascending.
      earlier: the shards before those.
      ranks: of the communicator, in the job.

    Attributes:
      chunking: of those that begin from now on; the same on all ranks.
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
        self.chunking = Chunking()
        self.awaited = sorted({ranks[rank] for shard in shards for rank in shard.ranks})
        self._landings: list[np.ndarray] = []
        self._last: InterNodeReduction | None = None

    def begin(
        self, array: np.ndarray, op: Op, place: str, divisor: int = 1, wire: Wire | None = None
    ) -> InterNodeReduction:
        """Of this rank's shards of an array, in place. Collective: the shards' ranks.

        Args:
          array: [n], contiguous.
          op: how.
          place: the same words on every rank.
          divisor: what the results are divided by, before they are rounded.
          wire: how the array travels; None: as it is.
        """
        # Kept until it is finished: if this rank gives up, MPI may yet write to its memory.
        encoding = Unencoded(array) if wire is None else Encoded(array, wire)
        self._last = InterNodeReduction(self, encoding, op, place, divisor)
        return self._last

    def forget(self) -> None:
        """The last one is finished."""
        self._last = None

    def landing(self, size_bytes: int) -> np.ndarray:
        """Memory for what comes, uint8 [size_bytes or more], until it is given back."""
        for index, area in enumerate(self._landings):
            if area.size >= size_bytes:
                return self._landings.pop(index)
        self._landings.clear()  # too small
        return np.empty(size_bytes, np.uint8)

    def give_back(self, area: np.ndarray) -> None:
        """It is not needed any more."""
        self._landings.append(area)


class _Piece:
    """Some elements of a shard.

    Attributes:
      ranks: of the shard.
      parts: of the array, one of each rank.
      whole: of the array.
      tag: of its messages, and the next.
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
    """MPI reads a message until it is gone."""
    then()


class InterNodeReduction:
    """One of them; a ``stall_detection.Request`` that is complete whenever something has come or gone."""

    def __init__(self, owner: InterNodeReductions, encoding: Encoding, op: Op, place: str, divisor: int) -> None:
        self._owner = owner
        self._comm = owner.comm
        self._encoding = encoding
        self._array = array = encoding.array
        self._op: Op = op
        self._divisor = divisor
        self._place = place
        self._pieces = owner.chunking.pieces
        self._left = _pieces(owner, array.size, array.itemsize, encoding.sent_itemsize)
        self._next = next(self._left, None)
        self._ready = 0
        self._open = 0
        self._requests: list[Any] = []
        self._then: list[Callable[[], None]] = []
        self._finished: list[slice] = []

    def offer(self, stop: int) -> list[slice]:
        """This rank's elements up to there are ready to be combined.

        Returns:
          The elements that have been, on all ranks, since the last call.
        """
        self._ready = stop
        self.Test()
        finished, self._finished = self._finished, []
        return finished

    def finish(self) -> Iterator[slice]:
        """All are ready; those that have been combined, as they come.

        Raises:
          PeerError: nothing has come or gone for too long.
        """
        yield from self.offer(self._array.size)
        while self._next or self._open:
            self._owner.detector.wait(self, self._place, self._owner.awaited, moving=True)
            yield from self.offer(self._array.size)
        self._owner.forget()

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        """Whether anything has happened; what follows from it has been begun."""
        before = self._next
        while self._next and self._open < self._pieces and self._next.whole.stop <= self._ready:
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
        piece.outstanding = 1  # this
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
        # In the order of the ranks, whoever does it: the bits are the same however the array is cut.
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
        """This rank's contribution is with the other, which sends the sum to where it was."""
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
    nodes, chunking = len(owner.shards[0].ranks), owner.chunking
    part_bytes = min(
        chunking.message_bytes, max(_SMALLEST_PART_BYTES, _LANDING_BYTES // (chunking.pieces * max(1, nodes - 1)))
    )
    room = part_bytes // sent_itemsize * nodes
    stretches = [reduce_ops.stretch(elements, shard.start, shard.stop, itemsize) for shard in owner.earlier]
    number = sum(len(range(whole.start, whole.stop, room)) for whole in stretches)
    for shard in owner.shards:
        whole = reduce_ops.stretch(elements, shard.start, shard.stop, itemsize)
        for start in range(whole.start, whole.stop, room):
            # Among the pieces of all shards: two ranks may have several shards in common.
            yield _Piece(shard, 2 * (number % _TAGS), slice(start, min(start + room, whole.stop)), itemsize)
            number += 1
