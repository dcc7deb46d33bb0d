"""Timeline: what each rank does when, as a Chrome trace, and a table of where the time went.

The trace opens in Perfetto and in Chrome's about:tracing; its format is the JSON array of "complete" events described
in the Trace Event Format document of the Chromium project.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Span = Callable[[str, str], contextlib.AbstractContextManager[None]]

# What the computing thread does and what happens beside it are two lines of a rank's row.
_COMPUTING = ("copy in", "held up")


class Stepping(Protocol):
    """Whose spans they are: a collective."""

    name: str
    step: int


class Recorder(Protocol):
    """Takes note, or does not."""

    def spans(self, owner: Stepping) -> Span:
        """``with span(kind, what)``: something that lasts.

        Kinds: ``wait`` for peers, ``copy in``, ``reduce``, ``wait for sums`` of the others, ``copy out``, and
        ``held up``: the computation has nothing to do before an exchange is complete.
        """


class Silent:
    """Takes no note."""

    _nothing = contextlib.nullcontext()

    def spans(self, owner: Stepping) -> Span:
        return self._span

    def _span(self, kind: str, what: str) -> contextlib.AbstractContextManager[None]:
        return self._nothing


class Event(NamedTuple):
    """One span; seconds on its rank's clock."""

    kind: str
    owner: str
    step: int
    what: str
    start: float
    end: float


class Recording:
    """Takes note in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def spans(self, owner: Stepping) -> Span:
        @contextlib.contextmanager
        def span(kind: str, what: str) -> Iterator[None]:
            start = time.perf_counter()
            try:
                yield
            finally:
                # A tensor of the next step is copied in while the collective still counts this one.
                self.events.append(Event(kind, owner.name, owner.step, what, start, time.perf_counter()))

        return span


def write(path: str, ranks: Sequence[Sequence[Event]]) -> None:
    """Write the trace, first under a temporary name.

    Args:
      path: of the file.
      ranks: each rank's events, on one clock.
    """
    begin = min((e.start for events in ranks for e in events), default=0.0)
    trace: list[dict[str, Any]] = []
    for rank, events in enumerate(ranks):
        trace.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for tid, name in enumerate(("computation", "exchange")):
            trace.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}})
        for event in events:
            trace.append(
                {
                    "ph": "X",
                    "name": event.kind,
                    "cat": event.owner,
                    "pid": rank,
                    "tid": int(event.kind not in _COMPUTING),
                    "ts": (event.start - begin) * 1e6,
                    "dur": (event.end - event.start) * 1e6,
                    "args": {"what": event.what, "step": event.step, "in": event.owner},
                }
            )
        for step, start in _step_starts(events).items():
            mark = {"ph": "i", "name": f"step {step}", "pid": rank, "tid": 0, "s": "p", "ts": (start - begin) * 1e6}
            trace.append(mark)
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w") as file:
        json.dump(trace, file)
    os.replace(temporary, path)


def table(ranks: Sequence[Sequence[Event]]) -> str:
    """Where the time of a step went on each rank, and who was late.

    A step's length is the median distance of successive steps; communication counts the copies and sums, but no
    waiting for peers; what is hidden of it has not held up the computation.
    """
    late = _late(ranks)
    lines = [f"{'rank':>4} {'steps':>6} {'step ms':>9} {'compute':>9} {'communication':>14} {'hidden':>7} {'late':>6}"]
    for rank, events in enumerate(ranks):
        starts = list(_step_starts(events).values())
        steps = max(1, len(starts))
        length = statistics.median(b - a for a, b in zip(starts, starts[1:], strict=False)) if steps > 1 else 0.0
        busy = sum(e.end - e.start for e in events if e.kind not in ("held up", "wait", "wait for sums")) / steps
        held = _held_up(events) / steps
        copied_in = sum(e.end - e.start for e in events if e.kind == "copy in") / steps
        hidden = max(0.0, 1 - (held + copied_in) / busy) if busy else 0.0
        compute = max(0.0, length - held - copied_in)
        lines.append(
            f"{rank:>4} {len(starts):>6} {length * 1e3:>9.2f} {compute * 1e3:>9.2f} {busy * 1e3:>14.2f} "
            f"{hidden:>7.0%} {late[rank]:>6}"
        )
    return "\n".join(lines)


def _step_starts(events: Sequence[Event]) -> Mapping[int, float]:
    """When each step's exchanges began on this rank, for the collective that has most of them."""
    by_owner: dict[str, dict[int, float]] = {}
    for event in events:
        if event.kind == "wait":
            by_owner.setdefault(event.owner, {}).setdefault(event.step, event.start)
    return max(by_owner.values(), key=len, default={})


def _held_up(events: Sequence[Event]) -> float:
    """Seconds in which the computation had to wait: of a single exchange, all that it does; overlaps count once."""
    split = {e.owner for e in events if e.kind == "held up"}
    spans = sorted(
        (e.start, e.end) for e in events if e.kind == "held up" or (e.owner not in split and e.kind != "copy in")
    )
    total, until = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _late(ranks: Sequence[Sequence[Event]]) -> list[int]:
    """In how many steps each rank was the last at the first exchange of a collective."""
    arrivals: dict[tuple[str, int], dict[int, float]] = {}
    for rank, events in enumerate(ranks):
        for event in events:
            if event.kind == "wait":
                arrivals.setdefault((event.owner, event.step), {}).setdefault(rank, event.start)
    late = [0] * len(ranks)
    for by_rank in arrivals.values():
        if len(by_rank) == len(ranks):
            late[max(by_rank, key=by_rank.__getitem__)] += 1
    return late
