"""Steps: how each rank spent the time of a training step, from a timeline's spans."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tfdist.record.recorded import Event


def table(ranks: Sequence[Sequence[Event]]) -> str:
    """Return a table of how each rank spent the time of a step, and in how many steps it was late.

    A step's length is the median time from one step to the next. Communication counts the copies and sums, but not
    the wait for other ranks. Its hidden share has not held up the computation.
    """
    late = _late(ranks)
    lines = [f"{'rank':>4} {'steps':>6} {'step ms':>9} {'compute':>9} {'communication':>14} {'hidden':>7} {'late':>6}"]
    for rank, events in enumerate(ranks):
        starts = list(step_starts(events).values())
        steps = max(1, len(starts))
        length = statistics.median(b - a for a, b in zip(starts, starts[1:], strict=False)) if steps > 1 else 0.0
        busy = sum(e.end - e.start for e in events if not e.kind.startswith(("held up", "wait"))) / steps
        held = _held_up(events) / steps
        copied_in = sum(e.end - e.start for e in events if e.kind == "copy in") / steps
        hidden = max(0.0, 1 - (held + copied_in) / busy) if busy else 0.0
        compute = max(0.0, length - held - copied_in)
        lines.append(
            f"{rank:>4} {len(starts):>6} {length * 1e3:>9.2f} {compute * 1e3:>9.2f} {busy * 1e3:>14.2f} "
            f"{hidden:>7.0%} {late[rank]:>6}"
        )
    return "\n".join(lines)


def step_starts(events: Sequence[Event]) -> Mapping[int, float]:
    """Return when each step's exchanges began on this rank, for the collective with the most steps."""
    by_owner: dict[str, dict[int, float]] = {}
    for event in events:
        if event.kind == "wait":
            by_owner.setdefault(event.owner, {}).setdefault(event.step, event.start)
    return max(by_owner.values(), key=len, default={})


def _held_up(events: Sequence[Event]) -> float:
    """Return the seconds in which computation waited; a single exchange counts in full, overlaps count once."""
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
    """Return in how many steps each rank came last to the first exchange of a collective."""
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
