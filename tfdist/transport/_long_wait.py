"""A long wait: logs a stall, and gives up at the deadline, or earlier if an awaited rank cannot come any more.

``whereabouts`` describes the other ranks in the messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tfdist.core.log import log
from tfdist.core.settings import Settings
from tfdist.processes.process_state import GONE, STOPPED
from tfdist.transport.errors import PeerError
from tfdist.transport.state_line import Held, RankState, States, clipped, digest
from tfdist.transport.whereabouts import NOBODY, ranks_text, silent_seconds, whereabouts

_LOOK_SECONDS = 0.02  # between two readings of the other ranks' states
_LOOK_SHARE = 0.05  # of the time is spent reading, at most: there may be thousands of ranks
_NAP_SECONDS = 1e-3
_CERTAIN_SECONDS = 5.0  # in which nothing changes: a message of a rank that has ended, or gone on, may be late


class Request(Protocol):
    """A pending MPI operation (``mpi4py.MPI.Request``)."""

    def Test(self) -> bool: ...  # noqa: N802, D102 (mpi4py's name)


class WaitOptions(NamedTuple):
    """Arguments of a wait: see ``stall_detection.StallDetector.wait``."""

    place: str
    ranks: Sequence[int] | None = None
    moving: bool = False
    background: bool = False
    patient: bool = False
    number: int = 0
    news: bool = False

    @property
    def kind(self) -> str:
        """Kind of this rank's state, see ``state_line.RankState``."""
        return "moving" if self.moving else "background" if self.background else "waiting"

    @property
    def held(self) -> Held:
        """The call, as other ranks read it."""
        # (Messages of ranks that have arrived are under way: no rank is held up that has not arrived.)
        ranks = () if self.moving else None if self.ranks is None else tuple(self.ranks)
        return Held(digest(clipped(self.place)), self.number, ranks)


_BEHIND = 1.25  # times the deadline, if all missing ranks wait for a message themselves
_ALIKE = (
    "All ranks must run the same collective calls, equally often. Give all ranks equal data (tfdist.shard). Keep "
    "training (for example model.fit) and tfdist's other collective calls out of `if tfdist.rank() == 0:`"
)


class LongWait:
    """A wait that has become long.

    Args:
      states: states of the other ranks.
      settings: settings with the deadlines.
      request: the awaited operation.
      manner: arguments of the wait.
      held: function that returns the one call that holds this rank's program up, see ``state_line.Held``.
      trace_place: path for ``python -m tfdist trace``; empty: there is none.
    """

    def __init__(
        self,
        states: States,
        settings: Settings,
        request: Request,
        manner: WaitOptions,
        held: Callable[[], Held | None] = lambda: None,
        trace_place: str = "",
    ) -> None:
        self._states, self._settings = states, settings
        self._request, self._manner, self._held = request, manner, manner.held
        self._holds_up = held
        self._rank = states.rank
        self._ranks = None if manner.ranks is None else frozenset(manner.ranks)
        self._place = clipped(manner.place)
        self._next_report_seconds = settings.stall_seconds
        self._next_look_seconds = 0.0
        self._excused_seconds = 0.0  # the deadline counts from the end of the last excuse
        self._alone_since: float | None = None
        self._trace_place = trace_place  # named in the first report only
        self._seen: dict[int, tuple[Held | None, float]] = {}  # the call of each other rank, and since when

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
        self._look_for_a_disagreement(states)
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
        ended = [r for r, s in others.items() if _over(s) and self._may_be_missed(s)]
        if not ended or self._arrives_within(_CERTAIN_SECONDS):
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
        came = self._manner.moving or (self._ordered and not self._absent(state))
        return bool(state.what) or not came or state.kind != "ended"

    @property
    def _ordered(self) -> bool:
        """Whether the number of this call tells which ranks have come to it."""
        return self._held.number > 0 and self._holds_up() == self._held

    def _look_for_a_disagreement(self, states: Mapping[int, RankState]) -> None:
        """Raise PeerError if another rank has waited for long in a call that this rank's call contradicts."""
        if self._holds_up() != self._held or self._manner.moving:
            return
        elsewhere = []
        for rank, state in states.items():
            held, since = self._seen.get(rank, (None, 0.0))
            if state.held != held:
                self._seen[rank] = state.held, state.asked
            elif self._held.contradicts(held) and state.answers and state.asked - since > _CERTAIN_SECONDS:
                elsewhere.append(rank)
        if elsewhere and not self._request.Test():
            raise PeerError(
                f"rank {self._rank} waits in {self._place}, but {whereabouts(states, elsewhere)}. "
                "All ranks must run the same operations in the same order. Look for a fetch, a condition, a "
                "step or an early stop that depends on the rank."
            )

    def _missing(self, others: Mapping[int, RankState]) -> list[int]:
        # A rank that was here may have been stopped since, or cut off from the network.
        return [r for r, s in others.items() if self._absent(s) or not s.answers or silent_seconds(s)]

    def _absent(self, state: RankState) -> bool:
        if state.process in (GONE, STOPPED):
            return True
        if self._ordered:
            return state.position < self._held.number
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
