"""Stall detection, of ranks that hang too: every wait has a deadline and can say who is missing, and where.

A rank that has given a wait up is not in step with the others any more, who may still come: whatever it would do with
them is refused from then on, and what MPI may yet write to is kept.

A rank that has waited for a second says where; a rank inside ``alone(reason)`` and one whose program has ended say so
at once. Nothing is sent: it is read by those who wait (``mpi._states``).

A call of MPI's that blocks cannot be given up: there a thread waits, and ends the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from tfdist.core.flight_recorder import SILENT, Recorder
from tfdist.core.log import last_words, log
from tfdist.core.settings import Settings
from tfdist.transport._blocking_call import BlockingCall
from tfdist.transport.interfaces import PeerError
from tfdist.transport.state_line import State, clipped
from tfdist.transport.whereabouts import NOBODY, ranks_in_words, silent_seconds, whereabouts

_ANNOUNCE_SECONDS = 1.0
_ENTANGLED_SECONDS = 5.0  # ranks that wait for each other in different places; long enough for news on its way
_YIELDING_SECONDS = 1e-4  # a peer in step is here within that; longer yielding takes the core from whoever computes
_NAP_SHARE = 0.1  # of the time waited so far: what a nap may add to a wait
_LONGEST_NAP_SECONDS = 1e-3
_LOOK_SECONDS = 0.02  # between two looks at the others
_LOOK_SHARE = 0.05  # of the time, at most: there may be thousands

_RUNNING = ("running", "")


class Request(Protocol):
    """A pending MPI operation (``mpi4py.MPI.Request``)."""

    def Test(self) -> bool: ...  # noqa: N802, D102 (mpi4py's name)


class States(Protocol):
    """What the ranks are about."""

    rank: int
    size: int

    def tell(self, kind: str, what: str) -> None:
        """What this rank is about, until further notice."""

    def read(self) -> Mapping[int, State]:
        """Of all other ranks, as far as it is known; does not wait for anybody."""


class StallDetector:
    """This rank's knowledge of where the others are.

    Args:
      states: of the ranks.
      settings: stall_seconds and stall_abort_seconds.
      recorder: of what this rank does with the others.
      end: ends the job, with this exit code.
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
        aside: bool = False,
        patient: bool = False,
    ) -> None:
        """Wait without burning the core until ``request`` is complete.

        Args:
          request: a pending operation that completes when all ranks have reached ``place``.
          place: the same words on every rank that waits for the same thing.
          ranks: who is awaited, if not all.
          moving: all have been there, and their messages are on the way.
          aside: by a thread beside those that compute: others may come here after waiting elsewhere.
          patient: as long as the others run.

        Raises:
          PeerError: a rank has ended, all wait in different places, or the deadline has passed; or this rank has given
            up before.
        """
        try:
            self.check(place)
            self._wait(request, place, ranks, moving=moving, aside=aside, patient=patient)
        except BaseException as error:
            self._abandoned.append(request)
            self.give_up(error)
            if isinstance(error, PeerError) or not isinstance(error, Exception):
                raise
            raise broken(place, error) from error

    def _wait(self, request: Request, place: str, ranks: Sequence[int] | None, **manner: bool) -> None:
        start = time.monotonic()
        watch = None
        while not request.Test():
            waited = time.monotonic() - start
            if waited > _ANNOUNCE_SECONDS:
                watch = watch or _Watch(self, request, place, ranks, **manner)
                watch.look(waited)
            if waited < _YIELDING_SECONDS:
                os.sched_yield()
            else:
                time.sleep(min(_LONGEST_NAP_SECONDS, _NAP_SHARE * waited))
        if watch:
            self._states.tell(*self._state)

    @contextlib.contextmanager
    def inside(self, place: str, ranks: Sequence[int] | None = None) -> Iterator[None]:
        """Calls that block until other ranks have come, and let Python's threads run meanwhile.

        If they do not return in time, a message says what ``wait`` would, and the job ends: nothing can be caught.

        Args:
          place: the same words on every rank that waits for the same thing.
          ranks: who is awaited, if not all.
        """
        call = BlockingCall()
        watch = threading.Thread(target=self._guard, args=(call, place, ranks), name="tfdist deadline", daemon=True)
        watch.start()
        try:
            yield
        finally:
            call.returned.set()

    def _guard(self, call: BlockingCall, place: str, ranks: Sequence[int] | None) -> None:
        if not call.returned.wait(_ANNOUNCE_SECONDS):
            try:
                self._wait(call, place, ranks)
            except Exception as error:
                self.end_job(error)

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
        """Which ranks are stopped or cannot be reached, in words; empty if none is known to be."""
        states = self._states.read()
        lost = [r for r, s in states.items() if s.kind != "ended" and (silent_seconds(s) or not s.answers)]
        return whereabouts(states, lost)

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


class _Watch:
    """One long wait: what it has told, and what it makes of the others' news."""

    def __init__(
        self, detector: StallDetector, request: Request, place: str, ranks: Sequence[int] | None, **manner: bool
    ) -> None:
        self._detector = detector
        self._ranks = None if ranks is None else frozenset(ranks)
        self._request = request
        self._place = clipped(place)
        self._settings = detector._settings
        self._next_report_seconds = self._settings.stall_seconds
        self._entangled_since: float | None = None
        self._excused_seconds = 0.0  # the deadline runs from when the last one alone came back
        self._rank = detector._states.rank
        self._next_look_seconds = 0.0
        self._trace_place = detector.recorder.place  # until it has been told
        self._moving, self._aside, self._patient = (manner.get(m, False) for m in ("moving", "aside", "patient"))
        detector._states.tell("moving" if self._moving else "aside" if self._aside else "waiting", place)

    def look(self, waited: float) -> None:
        if waited < self._next_look_seconds:
            return
        start = time.monotonic()
        states = self._detector._states.read()
        others = {r: s for r, s in states.items() if r in self._ranks} if self._ranks is not None else dict(states)
        self._judge(others, waited)
        self._next_look_seconds = waited + max(_LOOK_SECONDS, (time.monotonic() - start) / _LOOK_SHARE)

    def _judge(self, others: dict[int, State], waited: float) -> None:
        # While messages are on the way, one that has ended well was here before.
        ended = [r for r, s in others.items() if s.kind == "ended" and (s.what or not self._moving)]
        # A rank may pass this place and end before its part of the message is seen here: look once more.
        if ended and not self._arrives_within(1.0):
            failed = [r for r in ended if others[r].what]
            if failed:
                raise PeerError(
                    f"rank {failed[0]} ended {others[failed[0]].what} while rank {self._rank} waits in {self._place}."
                )
            raise PeerError(
                f"{ranks_in_words(ended)} ended while rank {self._rank} waits in {self._place}. "
                "Every rank must run the same number of steps: give all ranks equal data (tfdist.shard)."
            )
        self._check_entangled(others)
        if waited > self._next_report_seconds:
            self._next_report_seconds += self._settings.stall_seconds
            self._report(others, waited)
        missing = self._missing(others)
        if any(others[r].kind == "alone" and others[r].answers for r in missing):
            self._excused_seconds = waited
        if self._patient and all(s.answers and not silent_seconds(s) for s in others.values()):
            self._excused_seconds = waited
        if waited - self._excused_seconds > self._settings.stall_abort_seconds:
            who = f"{ranks_in_words(missing)} ({whereabouts(others, missing)})" if missing else NOBODY
            raise PeerError(
                f"rank {self._rank} has waited {waited:.0f} s in {self._place} for {who}. Wrap long work of one rank "
                "in tfdist.alone(reason), or raise TFDIST_STALL_ABORT_SECONDS."
            )

    def _check_entangled(self, others: dict[int, State]) -> None:
        elsewhere = [r for r, state in others.items() if state.what != self._place]
        known = all(state.kind == "waiting" and state.answers for state in others.values())
        if self._moving or self._aside or not elsewhere or not known:
            self._entangled_since = None
            return
        now = time.monotonic()
        self._entangled_since = self._entangled_since or now
        if now - self._entangled_since > _ENTANGLED_SECONDS:
            raise PeerError(
                f"rank {self._rank} waits in {self._place}, but {whereabouts(others, elsewhere)}. "
                "All ranks must run the same operations in the same order: look for a fetch, a condition, a "
                "step or an early stop that depends on the rank."
            )

    def _missing(self, others: dict[int, State]) -> list[int]:
        # One that was here, too, may have been stopped since, or cut off.
        return [r for r, s in others.items() if s.what != self._place or not s.answers or silent_seconds(s)]

    def _report(self, others: dict[int, State], waited: float) -> None:
        missing = self._missing(others)
        present = [self._rank, *(others.keys() - set(missing))]
        if self._rank == min(present):
            place, self._trace_place = self._trace_place, ""
            more = f" (python -m tfdist trace {place} says more)" if place else ""
            log(
                f"{ranks_in_words(present)} waited {waited:.0f} s in {self._place}; "
                f"missing: {whereabouts(others, missing) or NOBODY}{more}"
            )

    def _arrives_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._request.Test():
                return True
            time.sleep(_LONGEST_NAP_SECONDS)
        return False
