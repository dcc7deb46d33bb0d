"""Stall detection, of ranks that hang too: every wait has a deadline and can say who is missing, and where.

A rank that has given a wait up is not in step with the others any more, who may still come: whatever it would do with
them is refused from then on, and what MPI may yet write to is kept.

A rank that has waited for a second tells the others where; a rank inside ``alone(reason)`` and one whose program has
ended tell so at once. Nothing is sent in the normal run of things, and no thread listens: the messages are read by
those who wait.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tfdist.core.log import log
from tfdist.core.settings import Settings
from tfdist.transport.interfaces import PeerError

_ANNOUNCE_SECONDS = 1.0
_ENTANGLED_SECONDS = 5.0  # ranks that wait for each other in different places; long enough for news on its way
_YIELDING_SECONDS = 1e-4  # a peer in step is here within that; longer yielding takes the core from whoever computes
_NAP_SHARE = 0.25  # of the time waited so far: what a nap may add to a wait
_LONGEST_NAP_SECONDS = 1e-3


class Request(Protocol):
    """A pending MPI operation (``mpi4py.MPI.Request``)."""

    def Test(self) -> bool: ...  # noqa: N802, D102 (mpi4py's name)


class Mail(Protocol):
    """Small messages between ranks that nobody has to wait for."""

    rank: int
    size: int

    def send_to_all(self, message: Any) -> None: ...  # noqa: D102
    def receive_all(self) -> Iterator[tuple[int, Any]]: ...  # noqa: D102


_RUNNING = ("running", "")


class StallDetector:
    """This rank's knowledge of where the others are.

    Args:
      mail: the messages' transport.
      settings: stall_seconds and stall_abort_seconds.
    """

    def __init__(self, mail: Mail, settings: Settings) -> None:
        self._mail = mail
        self._settings = settings
        self._others: dict[int, tuple[str, str]] = {r: _RUNNING for r in range(mail.size) if r != mail.rank}
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
                f"{place} is refused: process {os.getpid()} was forked off by rank {self._mail.rank}, which alone may "
                "speak to the other ranks. Call it there, and hand the result to the child."
            )
        if self.gave_up:
            raise PeerError(
                f"{place} is refused: rank {self._mail.rank} has given up waiting before, and is not in step with the "
                f"other ranks any more ({self._first_failure}). Save what is needed without tfdist's collectives, and "
                "end the program."
            )

    def wait(self, request: Request, place: str, ranks: Sequence[int] | None = None) -> None:
        """Wait without burning the core until ``request`` is complete.

        Args:
          request: a pending operation that completes when all ranks have reached ``place``.
          place: the same words on every rank that waits for the same thing.
          ranks: who is awaited, if not all.

        Raises:
          PeerError: a rank has ended, all wait in different places, or the deadline has passed; or this rank has given
            up before.
        """
        try:
            self.check(place)
            self._wait(request, place, ranks)
        except BaseException as error:
            self._abandoned.append(request)
            self.give_up(error)
            raise

    def _wait(self, request: Request, place: str, ranks: Sequence[int] | None) -> None:
        start = time.monotonic()
        watch = None
        while not request.Test():
            waited = time.monotonic() - start
            if waited > _ANNOUNCE_SECONDS:
                watch = watch or _Watch(self, request, place, ranks)
                watch.look(waited)
            if waited < _YIELDING_SECONDS:
                os.sched_yield()
            else:
                time.sleep(min(_LONGEST_NAP_SECONDS, _NAP_SHARE * waited))
        if watch:
            self._mail.send_to_all(self._state)

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
            self._mail.send_to_all(self._state)

    def _news(self) -> dict[int, tuple[str, str]]:
        for sender, state in self._mail.receive_all():
            self._others[sender] = state
        return self._others


class _Watch:
    """One long wait: what it has told, and what it makes of the others' news."""

    def __init__(self, detector: StallDetector, request: Request, place: str, ranks: Sequence[int] | None) -> None:
        self._detector = detector
        self._ranks = ranks
        self._request = request
        self._place = place
        self._settings = detector._settings
        self._next_report_seconds = self._settings.stall_seconds
        self._entangled_since: float | None = None
        self._excused_seconds = 0.0  # the deadline runs from when the last one alone came back
        self._rank = detector._mail.rank
        detector._mail.send_to_all(("waiting", place))

    def look(self, waited: float) -> None:
        others = {r: s for r, s in self._detector._news().items() if self._ranks is None or r in self._ranks}
        ended = [r for r, (kind, _) in others.items() if kind == "ended"]
        # A rank may pass this place and end before its part of the message is seen here: look once more.
        if ended and not self._arrives_within(1.0):
            failed = [r for r in ended if others[r][1]]
            if failed:
                raise PeerError(
                    f"rank {failed[0]} ended {others[failed[0]][1]} while rank {self._rank} waits in {self._place}."
                )
            raise PeerError(
                f"{_ranks(ended)} ended while rank {self._rank} waits in {self._place}. "
                "Every rank must run the same number of steps: give all ranks equal data (tfdist.shard)."
            )
        self._check_entangled(others)
        if waited > self._next_report_seconds:
            self._next_report_seconds += self._settings.stall_seconds
            self._report(others, waited)
        missing = self._missing(others)
        if any(others[r][0] == "alone" for r in missing):
            self._excused_seconds = waited
        if waited - self._excused_seconds > self._settings.stall_abort_seconds:
            raise PeerError(
                f"rank {self._rank} has waited {waited:.0f} s in {self._place} for {_ranks(missing)} "
                f"({_whereabouts(others, missing)}). Wrap long work of one rank in tfdist.alone(reason), "
                "or raise TFDIST_STALL_ABORT_SECONDS."
            )

    def _check_entangled(self, others: dict[int, tuple[str, str]]) -> None:
        elsewhere = [r for r, (_, place) in others.items() if place != self._place]
        if not elsewhere or any(kind != "waiting" for kind, _ in others.values()):
            self._entangled_since = None
            return
        now = time.monotonic()
        self._entangled_since = self._entangled_since or now
        if now - self._entangled_since > _ENTANGLED_SECONDS:
            raise PeerError(
                f"rank {self._rank} waits in {self._place}, but {_whereabouts(others, elsewhere)}. "
                "All ranks must run the same operations in the same order: look for a fetch, a condition, a "
                "step or an early stop that depends on the rank."
            )

    def _missing(self, others: dict[int, tuple[str, str]]) -> list[int]:
        return [r for r, (_, place) in others.items() if place != self._place]

    def _report(self, others: dict[int, tuple[str, str]], waited: float) -> None:
        missing = self._missing(others)
        present = [self._rank, *(r for r in others if r not in missing)]
        if self._rank == min(present):
            log(
                f"{_ranks(present)} waited {waited:.0f} s in {self._place}; "
                f"missing: {_whereabouts(others, missing) or 'nobody, the message is on its way'}"
            )

    def _arrives_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._request.Test():
                return True
            time.sleep(_LONGEST_NAP_SECONDS)
        return False


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))


def _whereabouts(others: dict[int, tuple[str, str]], ranks: list[int]) -> str:
    words = {
        "running": "busy outside tfdist",
        "alone": "alone with",
        "joined": "has no more data (tfdist.join)",
        "waiting": "waits in",
        "ended": "has ended",
    }
    return "; ".join(f"rank {r} {words[others[r][0]]} {others[r][1]}".rstrip() for r in ranks)
