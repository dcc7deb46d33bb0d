"""Stall detection, also of ranks that hang: every wait has a deadline.

``_long_wait`` handles long waits: it finds the missing ranks and whether they can still come, and reports.

A rank that has given up a wait is not in step with the other ranks any more, which may still come. From then on it
refuses all calls that need them, and keeps the memory to which MPI may still write.

A rank that has waited for a second publishes where. A rank inside ``alone(reason)``, or with an ended program, does so
at once. The waiting ranks read what is published, or ask for it (``mpi._states``).

A blocking call of MPI cannot be given up: there a thread waits, and ends the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tfdist.core.log import write_last_message
from tfdist.core.settings import Settings
from tfdist.core.system import yield_processor
from tfdist.processes.process_state import GONE
from tfdist.record.flight_recorder import SILENT, FlightRecorder
from tfdist.transport._long_wait import LongWait, Request, WaitOptions
from tfdist.transport.awake import RunningSeconds
from tfdist.transport.blocking_call import BlockingCall, watched
from tfdist.transport.callers import Callers
from tfdist.transport.errors import PeerError
from tfdist.transport.saves import Position
from tfdist.transport.state_line import Held, States
from tfdist.transport.whereabouts import lost

_ANNOUNCE_SECONDS = 1.0
_YIELDING_SECONDS = 1e-4  # a peer in step comes within this time; longer yielding takes a core from computation
_NAP_SHARE = 0.1  # of the time waited so far is a nap's length, and so what it may add to a wait
_LONGEST_NAP_SECONDS = 1e-3
_RETURN_SECONDS = 5.0  # for a library's call to return after ``give_up``

_RUNNING = ("running", "")


class StallDetector:
    """Waits for other ranks with deadlines, and publishes this rank's state.

    Args:
      states: states of the ranks.
      settings: settings with stall_seconds, stall_abort_seconds and stall_alone_seconds.
      recorder: flight recorder of this rank.
      end: function that ends the job with an exit code.

    Attributes:
      position: position of this rank.
      callers: threads of the script that make calls.
    """

    def __init__(
        self,
        states: States,
        settings: Settings,
        recorder: FlightRecorder = SILENT,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.recorder = recorder
        self._end = end
        self._states = states
        self._settings = settings
        self._state = _RUNNING
        self._pid = os.getpid()
        self._first_failure = ""
        self._abandoned: list[Request] = []  # kept with their buffers: MPI writes to them when the other ranks come
        self.position = Position(states.tell_position)
        self._waits: dict[int, Held] = {}  # long waits that hold up the program, by the waiter's id
        self.callers = Callers(set())
        self._unordered = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Number of ranks of the job."""
        return self._states.size

    @property
    def gave_up(self) -> bool:
        """Whether this rank is not in step with the other ranks any more."""
        return bool(self._first_failure)

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._pid

    def give_up(self, error: BaseException) -> None:
        """Leave step with the other ranks, because of an error."""
        # Kept as text: the exception would keep the script's variables alive.
        self._first_failure = self._first_failure or f"{type(error).__name__}: {error}"
        if not self._forked:
            self.position.pass_all()

    @property
    def apart(self) -> bool:
        """Whether this process is no rank of the job: it was forked, or the rank's program has ended."""
        return self._forked or self._state[0] == "ended"

    def count(self, ranks: Sequence[int] | None) -> int:
        """Begin a call, and return its number among the calls of all ranks; 0 if only some ranks are awaited."""
        return self.position.count() if ranks is None or len(ranks) == self.size else 0

    @contextlib.contextmanager
    def unordered(self) -> Iterator[None]:
        """Allow calls in an order that differs between the ranks."""
        self._unordered += 1
        try:
            yield
        finally:
            self._unordered -= 1

    @property
    def held(self) -> Held | None:
        """The one call that holds this rank's program up; None: there is none, or calls may go on in any order."""
        waits = list(self._waits.values())
        return waits[0] if len(waits) == 1 and not self._unordered and not self.callers.several else None

    def _long_wait(self, request: Request, manner: WaitOptions) -> LongWait:
        """Publish that a wait has become long, and return it."""
        wait = LongWait(
            self._states, self._settings, request, manner, lambda: self.held, trace_place=self.recorder.place
        )
        self._states.tell(manner.kind, manner.place)
        if not manner.background:
            self._publish(id(wait), manner.held)
        return wait

    def _end_wait(self, wait: LongWait) -> None:
        """Publish that a long wait is over."""
        self._publish(id(wait), None)
        self._states.tell(*self._state)

    def _publish(self, wait: int, held: Held | None) -> None:
        with self._lock:
            self._waits.pop(wait, None)
            self._waits |= {} if held is None else {wait: held}
            self._states.tell_held(self.held)

    def check(self, place: str) -> None:
        """Refuse a call that needs the other ranks, after this rank has given up, and in a forked process.

        Raises:
          PeerError: the call is refused; it names the first failure.
        """
        if self._forked:
            raise PeerError(
                f"{place} is refused: process {os.getpid()} was forked by rank {self._states.rank}, and only the rank "
                "itself may communicate with other ranks. Call it there, and pass the result to the child."
            )
        if self.gave_up:
            raise PeerError(
                f"{place} is refused: rank {self._states.rank} has given up waiting before, and is not in step with "
                f"the other ranks any more ({self._first_failure}). Save what is needed without tfdist's collectives, "
                "and end the program."
            )

    def wait(
        self,
        request: Request,
        place: str,
        ranks: Sequence[int] | None = None,
        moving: bool = False,
        background: bool = False,
        patient: bool = False,
        number: int = 0,
    ) -> None:
        """Wait, without busy waiting, until ``request`` is complete.

        Args:
          request: a pending operation that completes when all ranks have reached ``place``.
          place: the same words on every rank that waits for the same thing.
          ranks: the awaited ranks; None: all.
          moving: True if all ranks have arrived, and their messages are on the way.
          background: True if a thread that does not train waits: other ranks may come here after waiting elsewhere.
          patient: True to wait without a deadline as long as the other ranks run.
          number: number of the call (``count``).

        Raises:
          PeerError: a rank has ended or waits elsewhere, or the deadline has passed; or this rank has given up before.
        """
        try:
            self.check(place)
            self._wait(request, WaitOptions(place, ranks, moving, background, patient, number))
        except BaseException as error:
            self._abandoned.append(request)
            self.give_up(error)
            if isinstance(error, PeerError) or not isinstance(error, Exception):
                raise
            raise broken(place, error) from error

    def wait_for_news(self, request: Request, place: str, rank: int) -> None:
        """Wait until another rank publishes something, its end included. Only the deadline gives up this wait.

        Raises:
          PeerError: see ``wait``.
        """
        self.check(place)
        background = threading.current_thread() is not threading.main_thread()
        try:
            self._wait(request, WaitOptions(place, [rank], background=background, news=True), in_step=True)
        except PeerError as error:
            self.give_up(error)
            raise

    def _wait(self, request: Request, manner: WaitOptions, in_step: bool = False) -> None:
        clock = RunningSeconds()
        long = None
        done = False
        try:
            while not request.Test():
                waited = clock.passed()
                if waited > _ANNOUNCE_SECONDS:
                    long = long or self._long_wait(request, manner)
                    long.look(waited)
                if waited < _YIELDING_SECONDS:
                    yield_processor()
                else:
                    time.sleep(min(_LONGEST_NAP_SECONDS, _NAP_SHARE * waited))
            done = True
        finally:
            if long and (done or in_step):
                self._end_wait(long)

    @contextlib.contextmanager
    def inside(self, place: str, ranks: Sequence[int] | None = None) -> Iterator[None]:
        """Watch calls that block until other ranks have come, and that release Python's global lock.

        If they do not return in time, the error of ``wait`` is printed and the job ends. It cannot be caught.

        Args:
          place: the same words on every rank that waits for the same thing.
          ranks: the awaited ranks; None: all.
        """
        manner = WaitOptions(place, ranks, number=self.count(ranks))

        def late(call: BlockingCall) -> None:
            try:
                self._wait(call, manner)
            except Exception as error:
                self.end_job(error)

        with watched(late, _ANNOUNCE_SECONDS):
            yield

    @contextlib.contextmanager
    def together(self, what: str, give_up: Callable[[PeerError], None]) -> Iterator[None]:
        """Watch what all ranks do in a library with waits of its own, and what ends on no rank if one does not go on.

        Args:
          what: description for messages.
          give_up: function that makes the library return. Another thread calls it when a rank has been stopped or lost
            for as long as a wait may last. If the library does not return, an error is printed and the job ends.
        """

        def late(call: BlockingCall) -> None:
            clock = RunningSeconds()
            last_seen = 0.0
            while not call.returned.wait(_ANNOUNCE_SECONDS):
                lost, waited = self.lost(), clock.passed()
                last_seen = last_seen if lost else waited
                if waited - last_seen > self._settings.stall_abort_seconds:
                    error = PeerError(f"rank {self._states.rank} has waited {waited:.0f} s in {what} for {lost}")
                    give_up(error)
                    if not call.returned.wait(_RETURN_SECONDS):
                        self.end_job(error)
                    return

        with watched(late, _ANNOUNCE_SECONDS):
            yield

    def end_job(self, error: Exception) -> None:
        """Print an error and end the job, where nothing can catch the error."""
        self.give_up(error)
        trace = f"\ntfdist: what each rank did last: python -m tfdist trace {self.recorder.place}"
        write_last_message(
            f"tfdist: rank {self._states.rank} of {self._states.size} failed:\n{type(error).__name__}: {error}"
            f"{trace * bool(self.recorder.place)}"
        )
        self._end(1)

    def lost(self) -> str:
        """Return which ranks are stopped, gone or cannot be reached, as text; empty if none is known to be."""
        return lost(self._states.read())

    @property
    def gone_after_its_end(self) -> bool:
        """Whether the process of some rank with an ended program is gone."""
        return any(state.kind == "ended" and state.process == GONE for state in self._states.read().values())

    @contextlib.contextmanager
    def alone(self, reason: str) -> Iterator[None]:
        """Publish that this rank works without the other ranks inside this block."""
        previous = self._state
        self.announce("alone", reason)
        try:
            yield
        finally:
            self.announce(*previous)

    def announce(self, kind: str, what: str = "") -> None:
        """Publish what this rank is doing from now on; does nothing in a forked process.

        Args:
          kind: ``running``; ``alone`` with something; ``joined``: has no more data, but takes part; ``ended``.
          what: details for messages.
        """
        self._state = (kind, what)
        if not self._forked:
            self._states.tell(*self._state)


def broken(place: str, error: BaseException) -> PeerError:
    """Return the PeerError for an error of MPI at a place."""
    return PeerError(f"{place}: MPI cannot go on ({error}). Another rank has ended, or the connection to it is broken.")
