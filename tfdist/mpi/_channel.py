"""MPI channel: an ordered sequence of operations over its own communicator and the node's shared memory."""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.reduce_ops import Op
from tfdist.core.rounded_wire import Wire
from tfdist.core.system import yield_processor
from tfdist.core.topology import Shard
from tfdist.mpi._messages import Messages
from tfdist.mpi._node import MpiNode
from tfdist.mpi._reduction import InterNodeReductions
from tfdist.record.flight_recorder import Entry
from tfdist.transport.errors import DisagreementError
from tfdist.transport.interfaces import Node, Sums
from tfdist.transport.stall_detection import Request, StallDetector

_GATHERED_RANKS = 64  # up to here an all-gather of 1.5 KB in all is faster than to compare by an all-reduce
_DRIVEN_SECONDS = 2e-3
_BURST_SECONDS = 2.5e-4  # between two naps
_NOTHING = np.empty(0, np.int64)
_LARGE_BYTES = 1 << 16  # between machines: for smaller arrays only latency counts, and MPI needs fewer messages


class MpiChannel:
    """A channel with its own communicator; see ``interfaces.Channel``.

    Args:
      comm: communicator of the group, which only this channel uses.
      detector: stall detector of this rank.
      ranks: ranks of the group, by their numbers in the job.
      line: name of this channel for the flight recorder, the same on all its ranks.
      node: shared memory of the node; None: the channel uses none.
      spread: True if the ranks are on several nodes.
      returned: function to call when this rank does not need the channel any more.
      of_script: True if threads of the script itself use the channel.
    """

    def __init__(
        self,
        comm: Any,
        detector: StallDetector,
        ranks: Sequence[int],
        line: str,
        node: MpiNode | None = None,
        spread: bool = False,
        returned: Callable[[MpiChannel], None] = lambda channel: None,
        of_script: bool = False,
    ) -> None:
        self._comm = comm
        self._returned = returned
        self._closed = False
        self._of_script = of_script
        self._thread = threading.RLock()
        self._detector = detector
        self._ranks = ranks
        self._recorder = detector.recorder
        self._line = line
        self._awaited = None if len(ranks) == detector.size else tuple(ranks)
        self._arrivals = self._number = 0
        self._entry: Entry | None = None
        self._place = line
        self._messages = Messages(comm, self._wait)
        everything = Shard(Fraction(0), Fraction(1), tuple(range(comm.size)), 0)
        self._reductions = InterNodeReductions(comm, detector, [everything], [], ranks)
        self._attached = _NOTHING
        self._attachments = np.empty((comm.size, 0), np.int64)
        self._spread = spread
        self._node = node
        self.node: Node | None = node
        self.rank = comm.rank
        self.size = comm.size
        self.background = self.patient = False
        self.notes: list[list[int]] = []
        self.between_machines = spread
        self.takes_attachments = spread and comm.size <= _GATHERED_RANKS

    def arrive(self, place: str, flags: int = 0, size_bytes: int = 0, notes: Sequence[int] = ()) -> list[int]:
        if self._closed:
            raise RuntimeError(f"{place}: the group of the ranks {', '.join(map(str, self._ranks))} was closed")
        self._detector.check(place)
        if self._of_script:
            self._detector.callers.called()
            with self._by_one_thread(place):
                return self._arrive(place, flags, size_bytes, notes)
        return self._arrive(place, flags, size_bytes, notes)

    def _arrive(self, place: str, flags: int, size_bytes: int, notes: Sequence[int]) -> list[int]:
        self._arrivals += 1
        self._number = 0 if self.background else self._detector.count(self._awaited)
        self._place = place
        self._entry = self._recorder.enter(self._line, self._arrivals, place, size_bytes)
        found = self._bring(place, flags, size_bytes, notes)
        self._recorder.met(self._entry)
        return found

    def _bring(self, place: str, flags: int, size_bytes: int, notes: Sequence[int]) -> list[int]:
        own = (zlib.crc32(place.encode()), size_bytes, flags, *notes)
        if self._node is not None and self._node.alone:
            rows = self._node.bring(own, self._wait_for_all)
        elif self.size > _GATHERED_RANKS and not notes and self._equal(own):
            return [flags] * self.size
        else:
            rows = self._gather(own)
        first = rows[0][:2]
        if any(row[:2] != first for row in rows):
            raise DisagreementError(self._difference(place, size_bytes))
        self.notes = [row[3:] for row in rows] if notes else []
        return [row[2] for row in rows]

    def _wait_for_all(self, request: Request) -> None:
        self._detector.wait(
            request, self._place, self._awaited, background=self.background, patient=self.patient, number=self._number
        )

    def _gather(self, own: Sequence[int]) -> list[list[int]]:
        """Gather the numbers that each rank brings and its attachment. Return the numbers, by rank."""
        attachment = self._attached
        brought = np.empty((self.size, len(own) + attachment.size), np.int64)
        request = self._comm.Iallgather(np.concatenate([np.array(own, np.int64), attachment]), brought)
        self._wait_for_all(request)
        self._attached, self._attachments = _NOTHING, brought[:, len(own) :]
        rows: list[list[int]] = brought[:, : len(own)].tolist()
        return rows

    def count(self) -> None:
        self._detector.count(self._awaited)

    def attach(self, array: np.ndarray) -> None:
        self._attached = array.view(np.int64)

    def attachments(self) -> list[np.ndarray]:
        return [attachment.view(np.uint8) for attachment in self._attachments]

    def _equal(self, own: Sequence[int]) -> bool:
        """Return whether all ranks bring the same numbers: maximum equals minimum. More ranks take no more bytes."""
        both = np.array([*own, *(-number for number in own)], np.int64)
        found = np.empty_like(both)
        request = self._comm.Iallreduce(both, found, MPI.MAX)
        self._wait_for_all(request)
        most, negative = found.reshape(2, -1)
        return bool((most == -negative).all())

    def done(self) -> tuple[float, float]:
        assert self._entry is not None
        return self._recorder.leave(self._entry)

    def give_back(self) -> None:
        self._returned(self)

    def close(self) -> None:
        """Free the communicator. Collective: all its ranks, which do not use the channel any more."""
        self._closed = True
        self._comm.Free()

    def give_up(self, error: BaseException) -> None:
        self._detector.give_up(error)

    def _difference(self, place: str, size_bytes: int) -> str:
        # All ranks have seen the same numbers, so all come here together.
        brought = self._messages.all_gather_object((place, size_bytes))
        other = next(r for r, what in enumerate(brought) if what != brought[0])
        (place_0, bytes_0), (place_1, bytes_1) = brought[0], brought[other]
        first, second = self._ranks[0], self._ranks[other]
        if place_0 != place_1:
            return (
                f"rank {first} is in {place_0}, but rank {second} in {place_1}. All ranks must run the same "
                "operations in the same order: look for a call that depends on the rank."
            )
        return (
            f"rank {first} brings {bytes_0} bytes to {place_0}, but rank {second} {bytes_1} bytes. "
            "Every rank must have tensors of the same shape and dtype there."
        )

    def _wait(self, request: Request) -> None:
        self._detector.wait(_Driven(request), self._place, self._awaited, moving=True)

    def all_reduce(self, array: np.ndarray, op: Op = "sum", divisor: int = 1) -> None:
        for _ in self.begin(array, op, divisor).finish():
            pass

    def begin(self, array: np.ndarray, op: Op = "sum", divisor: int = 1, wire: Wire | None = None) -> Sums:
        # MPI adds float16 coarsely and bfloat16 not at all, and Open MPI 5 clips sums of small integers to their range.
        narrow = array.itemsize <= 2 and array.dtype.kind != "b"
        if narrow or (self._spread and array.nbytes >= _LARGE_BYTES):
            return self._reductions.begin(array, op, self._place, divisor, wire if self._spread else None)
        return _AtOnce(self._messages, array, op, divisor)

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        self._messages.broadcast(array, root)

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        return self._messages.all_gather(array)

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self._messages.all_to_all(parts)

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        with self._by_one_thread(place):
            self.arrive(place)
            found = self._messages.all_gather_object(value)
            self.done()
            return found

    def broadcast_object(self, value: Any, place: str, root: int = 0) -> Any:
        with self._by_one_thread(place):
            self.arrive(place)
            found = self._messages.broadcast_object(value, root)
            self.done()
            return found

    @contextlib.contextmanager
    def _by_one_thread(self, place: str) -> Iterator[None]:
        if not self._thread.acquire(blocking=False):
            raise RuntimeError(
                f"{place}: two threads of rank {self._ranks[self.rank]} call collective operations at the same time. "
                "Their order could differ between ranks: call them in one thread"
            )
        try:
            yield
        finally:
            self._thread.release()


class _Driven:
    """A request of MPI's own collectives, whose messages make progress only inside MPI calls: naps delay them.

    So at first it is tested without naps. An all-reduce of 256 KiB took 0.5 ms, and 1.1 ms with naps from 0.1 ms on.
    Later it is tested many times between two naps. Where ranks may not read each other's memory, a call moves one cell
    of 16 KiB. 8 MiB took 1 s with one test a nap, and take 14 ms now.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._stop = time.monotonic() + _DRIVEN_SECONDS

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        stop = max(self._stop, time.monotonic() + _BURST_SECONDS)
        while not self._request.Test():
            if time.monotonic() > stop:
                return False
            yield_processor()
        return True


class _AtOnce:
    """MPI's own all-reduce of the whole array; see ``interfaces.Sums``."""

    def __init__(self, messages: Messages, array: np.ndarray, op: Op, divisor: int) -> None:
        self._messages, self._array, self._op, self._divisor = messages, array, op, divisor

    def offer(self, stop: int) -> list[slice]:
        return []

    def finish(self) -> Iterator[slice]:
        self._messages.all_reduce(self._array, self._op, self._divisor)
        yield slice(0, self._array.size)
