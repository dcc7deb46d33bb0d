"""A long wait: logs a stall, and gives up at the deadline, or earlier if an awaited rank cannot come any more.

``whereabouts`` describes the other ranks in the messages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tfdist.core.log import log
from tfdist.core.settings import Settings
from tfdist.processes.process_state import GONE, STOPPED
from tfdist.transport.calls import Call, Report, circle
from tfdist.transport.interfaces import PeerError
from tfdist.transport.state_line import RankState, States, clipped
from tfdist.transport.whereabouts import NOBODY, ranks_text, silent_seconds, whereabouts

if TYPE_CHECKING:
    from tfdist.core.flight_recorder import Recorder

_LOOK_SECONDS = 0.02  # between two readings of the other ranks' states
_LOOK_SHARE = 0.05  # of the time is spent reading, at most: there may be thousands of ranks
_NAP_SECONDS = 1e-3
_LAST_LOOK_SECONDS = 1.0  # for messages that a rank sent before it ended


class Request(Protocol):
    """A pending MPI operation (``mpi4py.MPI.Request``)."""

    def Test(self) -> bool: ...  # noqa: N802, D102 (mpi4py's name)


class Waiting(Protocol):
    """This rank, as far as its waits need it."""

    @property
    def recorder(self) -> Recorder:
        """Flight recorder of this rank."""

    @property
    def report(self) -> Report:
        """This rank's calls."""

    def begin_wait(self, waiter: LongWait, kind: str, place: str, call: Call | None) -> None:
        """Publish that a wait has become long."""


class WaitOptions(NamedTuple):
    """Arguments of a wait: see ``stall_detection.StallDetector.wait``."""

    place: str
    ranks: Sequence[int] | None = None
    moving: bool = False
    background: bool = False
    patient: bool = False
    entered: tuple[int, int] | None = None
    news: bool = False

    @property
    def call(self) -> Call | None:
        """The call that this rank has entered; None: do not compare it with the other ranks' calls."""
        ranks = None if self.ranks is None else tuple(self.ranks)
        return None if self.entered is None else Call(*self.entered, ranks)


_BEHIND = 1.25  # times the deadline, if all missing ranks wait for a message themselves
_ALIKE = (
    "All ranks must run the same collective calls, equally often. Give all ranks equal data (tfdist.shard). Keep "
    "training (for example model.fit) and tfdist's other collective calls out of `if tfdist.rank() == 0:`"
)


class LongWait:
    """A wait that has become long.

    Args:
      own: this rank.
      states: states of the other ranks.
      settings: settings with the deadlines.
      request: the awaited operation.
      manner: arguments of the wait.
    """

    def __init__(self, own: Waiting, states: States, settings: Settings, request: Request, manner: WaitOptions) -> None:
        self._own, self._states, self._settings = own, states, settings
        self._request, self._manner, self._call = request, manner, manner.call
        self._rank = states.rank
        self._ranks = None if manner.ranks is None else frozenset(manner.ranks)
        self._place = clipped(manner.place)
        self._next_report_seconds = settings.stall_seconds
        self._next_look_seconds = 0.0
        self._excused_seconds = 0.0  # the deadline counts from the end of the last excuse
        self._alone_since: float | None = None
        self._trace_place = own.recorder.place  # named in the first report only
        self._before: Mapping[int, RankState] = {}
        self._before_read = float("inf")
        kind = "moving" if manner.moving else "background" if manner.background else "waiting"
        own.begin_wait(self, kind, manner.place, self._call)

    def look(self, waited: float) -> None:
        """Read the other ranks' states, if it is time; report a stall, or give up.

        Args:
          waited: seconds waited, without those in which this process was stopped.

        Raises:
          PeerError: see ``stall_detection.StallDetector.wait``.
        """
        if waited < self._next_look_seconds:
            return
        start = time.monotonic()
        states = dict(self._states.read())
        self._judge(states, waited)
        self._next_look_seconds = waited + max(_LOOK_SECONDS, (time.monotonic() - start) / _LOOK_SHARE)

    def _judge(self, states: Mapping[int, RankState], waited: float) -> None:
        others = {r: s for r, s in states.items() if r in self._ranks} if self._ranks is not None else states
        self._look_for_the_ended(others)
        self._look_for_a_circle(states)
        missing = self._missing(others)
        if waited > self._next_report_seconds:
            self._next_report_seconds += self._settings.stall_seconds
            beside = [r for r in states.keys() - others.keys() if states[r].what == self._place]
            self._report(others, missing, beside, waited)
        self._excuse(others, missing, waited)
        # Ranks that wait for a message themselves can name the missing rank: they report first.
        behind = missing and all(others[r].kind == "moving" and others[r].answers for r in missing)
        limit = self._settings.stall_abort_seconds * (_BEHIND if behind else 1)
        if waited - self._excused_seconds > limit:
            who = f"{ranks_text(missing)} ({whereabouts(others, missing)})" if missing else NOBODY
            remedy = self._remedy(others, missing)
            raise PeerError(f"rank {self._rank} has waited {waited:.0f} s in {self._place} for {who}. {remedy}")

    def _remedy(self, others: Mapping[int, RankState], missing: Sequence[int]) -> str:
        if any(others[r].kind == "alone" for r in missing):
            return "If its work alone takes so long, raise TFDIST_STALL_ALONE_SECONDS."
        return (
            "Wrap long work of one rank in tfdist.alone(reason), or raise TFDIST_STALL_ABORT_SECONDS. If that rank "
            "never comes here, keep this call out of `if tfdist.rank() == 0:`"
        )

    def _excuse(self, others: Mapping[int, RankState], missing: Sequence[int], waited: float) -> None:
        """Hold the deadline while a missing rank has a reason; a rank that works alone has a deadline of its own."""
        alone = any(others[r].kind == "alone" and others[r].answers for r in missing)
        self._alone_since = (waited if self._alone_since is None else self._alone_since) if alone else None
        if self._alone_since is not None and waited - self._alone_since <= self._settings.stall_alone_seconds:
            self._excused_seconds = waited
        elif self._alone_since is not None:
            self._excused_seconds = -float("inf")
        if self._manner.patient and all(s.answers and not silent_seconds(s) for s in others.values()):
            self._excused_seconds = waited

    def _look_for_the_ended(self, others: Mapping[int, RankState]) -> None:
        """Raise PeerError if a rank has ended, or its process is gone, before it came here."""
        if self._manner.news:
            return  # the end of the rank completes the request, too
        call = self._call
        ended = [r for r, s in others.items() if _over(s) and self._may_be_missed(s)]
        if not ended or (call is None and self._arrives_within(_LAST_LOOK_SECONDS)):
            return
        if call is not None:
            # Read its calls once more: before its end it may have entered this one.
            now = self._states.read()
            ended = [r for r in ended if now[r].calls.has_not_come_to(call) or now[r].process == GONE]
            if not ended or self._arrives_within(_LAST_LOOK_SECONDS):
                return
        said = others[ended[0]]
        if said.kind != "ended":
            raise PeerError(
                f"{whereabouts(others, ended[:1])}, while rank {self._rank} waits in {self._place}. The system's log "
                "may have the reason, for example that memory ran out"
            )
        failed = [r for r in ended if others[r].what]
        if failed:
            raise PeerError(
                f"rank {failed[0]} ended {others[failed[0]].what} while rank {self._rank} waits in {self._place}."
            )
        raise PeerError(f"{ranks_text(ended)} ended while rank {self._rank} waits in {self._place}. {_ALIKE}")

    def _may_be_missed(self, state: RankState) -> bool:
        """Whether a rank may not have come: while messages are on the way, a rank that ended well was here before."""
        return bool(state.what) or not self._manner.moving or state.kind != "ended"

    def _look_for_a_circle(self, states: Mapping[int, RankState]) -> None:
        """Compare two readings of the states, and raise PeerError if ranks wait for each other: see ``calls``."""
        call = self._call
        if call is None or self._manner.background or self._manner.moving:
            return
        fresh = {r: s for r, s in states.items() if s.asked > self._before_read and s.answers}
        before = {r: s for r, s in self._before.items() if r in fresh}
        if before:
            over = frozenset(r for r, s in before.items() if _over(s))
            awaited = before.keys() if call.ranks is None else before.keys() & set(call.ranks)
            absent = [r for r in awaited if fresh[r].calls.has_not_come_to(call)]
            # (All ranks are compared only where a circle is possible: there may be thousands.)
            if any(r in over or before[r].calls.waits for r in absent):
                own = self._own.report
                found = circle(
                    {self._rank: own, **{r: s.calls for r, s in before.items()}},
                    {self._rank: own, **{r: s.calls for r, s in fresh.items()}},
                    over,
                )
                if self._rank in found:
                    self._tell_the_circle(states, [r for r in absent if r in found or r in over])
        if len(fresh) == len(states) or not self._before:
            self._before, self._before_read = states, time.monotonic()

    def _tell_the_circle(self, states: Mapping[int, RankState], elsewhere: Sequence[int]) -> None:
        if self._request.Test():  # (the readings exclude this; but then nothing is wrong)
            return
        raise PeerError(
            f"rank {self._rank} waits in {self._place}, but {whereabouts(states, elsewhere)}. "
            "All ranks must run the same operations in the same order. Look for a fetch, a condition, a "
            "step or an early stop that depends on the rank."
        )

    def _missing(self, others: Mapping[int, RankState]) -> list[int]:
        # A rank that was here may have been stopped since, or cut off from the network.
        return [r for r, s in others.items() if self._absent(s) or not s.answers or silent_seconds(s)]

    def _absent(self, state: RankState) -> bool:
        call = self._call
        if state.process in (GONE, STOPPED):
            return True
        if call is not None and state.calls.knows(call):
            return state.calls.has_not_come_to(call)
        return state.what != self._place

    def _report(
        self, others: Mapping[int, RankState], missing: Sequence[int], beside: Sequence[int], waited: float
    ) -> None:
        present = [self._rank, *(others.keys() - set(missing)), *beside]
        if self._rank == min(present):
            place, self._trace_place = self._trace_place, ""
            more = f" (python -m tfdist trace {place} says more)" if place else ""
            log(
                f"{ranks_text(present)} waited {waited:.0f} s in {self._place}; "
                f"missing: {whereabouts(others, missing) or NOBODY}{more}"
            )

    def _arrives_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._request.Test():
                return True
            time.sleep(_NAP_SECONDS)
        return False


def _over(state: RankState) -> bool:
    return state.kind == "ended" or state.process == GONE
