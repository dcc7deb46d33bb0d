"""Stall detection, of ranks that hang too: every wait has a deadline; the messages stand in ``_long_wait``.

What is made of a long wait stands there, too: who is missing, and whether anybody can still come (``calls``).

A rank that has given a wait up is not in step with the others any more, who may still come: whatever it would do with
them is refused from then on, and what MPI may yet write to is kept.

A rank that has waited for a second says where; a rank inside ``alone(reason)`` and one whose program has ended say so
at once. Nothing is sent: it is read by those who wait (``mpi._states``).

A call of MPI's that blocks cannot be given up: there a thread waits, and ends the process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tfdist.core.flight_recorder import SILENT, Recorder
from tfdist.core.log import last_words
from tfdist.core.settings import Settings
from tfdist.processes.process_state import GONE
from tfdist.transport._long_wait import LongWait, Manner, Request
from tfdist.transport.awake import AwakeSeconds
from tfdist.transport.callers import Callers
from tfdist.transport.calls import Call, Report, line_number
from tfdist.transport.interfaces import PeerError
from tfdist.transport.saves import Position
from tfdist.transport.state_line import States
from tfdist.transport.whereabouts import lost


class BlockingCall:
    """A blocking call as a request.

    Args:
      late: is called by another thread when it has not returned after ``seconds``, and waits on.
      seconds: until then.
    """

    def __init__(self, late: Callable[[BlockingCall], None], seconds: float) -> None:
        self._late, self._seconds = late, seconds
        self.returned = threading.Event()
        _submitted.put(self)
        _start()

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        return self.returned.is_set()

    def watch(self) -> None:
        """Wait for it; by the other thread."""
        if not self.returned.wait(self._seconds):
            self._late(self)


_submitted: queue.SimpleQueue[BlockingCall] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def _start() -> None:
    """One thread for all of them, begun with the first: at the end of a program Python begins none any more."""
    global _thread
    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_work, name="tfdist deadline", daemon=True)
            _thread.start()


def _work() -> None:
    while True:
        _submitted.get().watch()


_ANNOUNCE_SECONDS = 1.0
_YIELDING_SECONDS = 1e-4  # a peer in step is here within that; longer yielding takes the core from whoever computes
_NAP_SHARE = 0.1  # of the time waited so far: what a nap may add to a wait
_LONGEST_NAP_SECONDS = 1e-3
_RETURN_SECONDS = 5.0  # for a library that has been told to

_RUNNING = ("running", "")


@contextlib.contextmanager
def _watched(late: Callable[[BlockingCall], None]) -> Iterator[None]:
    call = BlockingCall(late, _ANNOUNCE_SECONDS)
    try:
        yield
    finally:
        call.returned.set()


class StallDetector:
    """This rank's knowledge of where the others are.

    Args:
      states: of the ranks.
      settings: stall_seconds, stall_abort_seconds and stall_alone_seconds.
      recorder: of what this rank does with the others.
      end: ends the job, with this exit code.

    Attributes:
      position: of this rank.
      callers: threads of its script.
    """

    def __init__(
        self,
        states: States,
        settings: Settings,
        recorder: Recorder = SILENT,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.recorder = recorder
        self._end = end
        self._states = states
        self._settings = settings
        self._state = _RUNNING
        self._pid = os.getpid()
        self._first_failure = ""
        self._abandoned: list[Request] = []  # with their buffers: MPI writes to them when the others come
        self._entered: dict[int, int] = {}
        self.position = Position(states.tell_position)
        self._waits: dict[int, Call | None] = {}  # the long ones that hold the program up, by who waits
        self.callers = Callers(set())
        self._unordered = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Ranks of the job."""
        return self._states.size

    @property
    def gave_up(self) -> bool:
        """Whether this rank is not in step with the others any more."""
        return bool(self._first_failure)

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._pid

    def give_up(self, error: BaseException) -> None:
        """This rank does not go on where the others do."""
        # In words: the error itself holds on to the script's variables.
        self._first_failure = self._first_failure or f"{type(error).__name__}: {error}"
        if not self._forked:
            self.position.pass_all()

    @property
    def apart(self) -> bool:
        """Whether this process is no rank among others: it was forked off, or the rank's program has ended."""
        return self._forked or self._state[0] == "ended"

    def enter(self, line: int, number: int, everyone: bool = False) -> None:
        """This rank comes to a number of a line of operations (``calls.line_number``), where others must come too.

        Args:
          line: of operations.
          number: on it.
          everyone: all ranks do, in the order of their programs.
        """
        self._entered[line] = number
        self._states.enter(line, number, self.position.next() if everyone else 0)

    def enter_place(self, place: str, ranks: Sequence[int] | None) -> tuple[int, int]:
        """This rank comes to where ranks come now and then: the line of that place, and its next number."""
        line = line_number(f"{place} of {ranks}")
        self.enter(line, self._entered.get(line, 0) + 1, ranks is None or len(ranks) == self.size)
        return line, self._entered[line]

    @contextlib.contextmanager
    def unordered(self) -> Iterator[None]:
        """What begins now may come to several lines, in an order that differs between the ranks."""
        self._unordered += 1
        try:
            yield
        finally:
            self._unordered -= 1

    @property
    def report(self) -> Report:
        """This rank's own; see ``calls``."""
        return Report(self._waiting(), dict(self._entered), complete=True)

    def _waiting(self) -> tuple[Call, ...] | None:
        waits = list(self._waits.values())
        if self._unordered or self.callers.several or None in waits:
            return None
        return tuple(filter(None, waits))

    def begin_wait(self, waiter: LongWait, kind: str, place: str, call: Call | None) -> None:
        """A wait has become a long one: tell the others.

        Args:
          waiter: who waits.
          kind: see ``state_line.State``.
          place: in words.
          call: what it is in; None: no conclusion is to be drawn from it.
        """
        self._states.tell(kind, place)
        if kind != "background":
            with self._lock:
                self._waits[id(waiter)] = call
                self._states.tell_waits(self._waiting())

    def end_wait(self, waiter: LongWait) -> None:
        """It is over."""
        with self._lock:
            self._waits.pop(id(waiter), None)
            self._states.tell_waits(self._waiting())
        self._states.tell(*self._state)

    def check(self, place: str) -> None:
        """Refuse what needs the others, after this rank has given up, and in a process that was forked off.

        Raises:
          PeerError: naming the first failure.
        """
        if self._forked:
            raise PeerError(
                f"{place} is refused: process {os.getpid()} was forked off by rank {self._states.rank}, which alone "
                "may speak to the other ranks. Call it there, and hand the result to the child."
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
        entered: tuple[int, int] | None = None,
    ) -> None:
        """Wait without burning the core until ``request`` is complete.

        Args:
          request: a pending operation that completes when all ranks have reached ``place``.
          place: the same words on every rank that waits for the same thing.
          ranks: who is awaited, if not all.
          moving: all have been there, and their messages are on the way.
          background: by a thread beside those that compute: others may come here after waiting elsewhere.
          patient: as long as the others run.
          entered: the line and number that this rank has come to (``enter``), where the others must come; None: all
            have been there.

        Raises:
          PeerError: a rank has ended, ranks wait for each other, or the deadline has passed; or this rank has given up
            before.
        """
        try:
            self.check(place)
            self._wait(request, Manner(place, ranks, moving, background, patient, entered))
        except BaseException as error:
            self._abandoned.append(request)
            self.give_up(error)
            if isinstance(error, PeerError) or not isinstance(error, Exception):
                raise
            raise broken(place, error) from error

    def wait_for_news(self, request: Request, place: str, rank: int) -> None:
        """Wait likewise for what another rank will tell of itself, its end included: a deadline alone gives up.

        Raises:
          PeerError: see ``wait``.
        """
        self.check(place)
        background = threading.current_thread() is not threading.main_thread()
        try:
            self._wait(request, Manner(place, [rank], background=background, news=True), in_step=True)
        except PeerError as error:
            self.give_up(error)
            raise

    def _wait(self, request: Request, manner: Manner, in_step: bool = False) -> None:
        clock = AwakeSeconds()
        long = None
        done = False
        try:
            while not request.Test():
                waited = clock.passed()
                if waited > _ANNOUNCE_SECONDS:
                    long = long or LongWait(self, self._states, self._settings, request, manner)
                    long.look(waited)
                if waited < _YIELDING_SECONDS:
                    os.sched_yield()
                else:
                    time.sleep(min(_LONGEST_NAP_SECONDS, _NAP_SHARE * waited))
            done = True
        finally:
            if long and (done or in_step):
                self.end_wait(long)

    @contextlib.contextmanager
    def inside(self, place: str, ranks: Sequence[int] | None = None) -> Iterator[None]:
        """Calls that block until other ranks have come, and let Python's threads run meanwhile.

        If they do not return in time, a message says what ``wait`` would, and the job ends: nothing can be caught.

        Args:
          place: the same words on every rank that waits for the same thing.
          ranks: who is awaited, if not all.
        """
        manner = Manner(place, ranks, entered=self.enter_place(place, ranks))

        def late(call: BlockingCall) -> None:
            try:
                self._wait(call, manner)
            except Exception as error:
                self.end_job(error)

        with _watched(late):
            yield

    @contextlib.contextmanager
    def together(self, what: str, give_up: Callable[[PeerError], None]) -> Iterator[None]:
        """What all ranks do, and which cannot end on one if another does not go on, in a library's own waits.

        Args:
          what: in words.
          give_up: called by another thread when a rank has been stopped or lost for as long as a wait may last; is to
            have the library return. If it does not, a message says who is lost, and the job ends.
        """

        def late(call: BlockingCall) -> None:
            clock = AwakeSeconds()
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

        with _watched(late):
            yield

    def end_job(self, error: Exception) -> None:
        """For where nobody can catch it."""
        self.give_up(error)
        trace = f"\ntfdist: what each rank did last: python -m tfdist trace {self.recorder.place}"
        last_words(
            f"tfdist: rank {self._states.rank} of {self._states.size} failed:\n{type(error).__name__}: {error}"
            f"{trace * bool(self.recorder.place)}"
        )
        self._end(1)

    def lost(self) -> str:
        """Which ranks are stopped, gone or cannot be reached, in words; empty if none is known to be."""
        return lost(self._states.read())

    @property
    def gone_after_its_end(self) -> bool:
        """Whether some rank's process is gone that had come to its program's end."""
        return any(state.kind == "ended" and state.process == GONE for state in self._states.read().values())

    @contextlib.contextmanager
    def alone(self, reason: str) -> Iterator[None]:
        """Tell the others that this rank works by itself meanwhile."""
        previous = self._state
        self.announce("alone", reason)
        try:
            yield
        finally:
            self.announce(*previous)

    def announce(self, kind: str, what: str = "") -> None:
        """Tell the others what this rank is about until further notice; says nothing in a process forked off.

        Args:
          kind: ``running``; ``alone`` with something; ``joined``: trains no more, but takes part; ``ended``.
          what: more of it, in words.
        """
        self._state = (kind, what)
        if not self._forked:
            self._states.tell(*self._state)


def broken(place: str, error: BaseException) -> PeerError:
    """What an error of MPI's own at a place means."""
    return PeerError(f"{place}: MPI cannot go on ({error}): another rank has ended, or the way to it is broken.")
