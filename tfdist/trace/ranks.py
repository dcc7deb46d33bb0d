"""Ranks side by side: their files on one clock, and their common operations."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tfdist.trace.recorded import Event, Recorded, read


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank's file.

    Attributes:
      number: of the rank.
      recorded: what the file holds; the events' times are on the clock of the first rank that is there.
    """

    number: int
    recorded: Recorded

    @property
    def operations(self) -> list[Event]:
        """What other ranks were needed for."""
        return [event for event in self.recorded.events if not event.kind]

    @property
    def spans(self) -> list[Event]:
        """What a timeline has beside them."""
        return [event for event in self.recorded.events if event.kind]


def load(names: Iterable[str]) -> list[Rank]:
    """The ranks whose files these are, by number.

    Args:
      names: of files, and of folders that hold nothing else.

    Raises:
      ValueError: one is no flight recorder's file, two are of the same rank, or there is none.
      OSError: one cannot be read.
    """
    paths = [path for name in names for path in (sorted(Path(name).iterdir()) if Path(name).is_dir() else [Path(name)])]
    found: dict[int, tuple[Path, Recorded]] = {}
    for path in paths:
        recorded = read(path)
        number = recorded.head["rank"]
        if number in found:
            raise ValueError(f"{found[number][0]} and {path} are both of rank {number}: give the files of one job")
        found[number] = path, recorded
    if not found:
        raise ValueError("there are no files of a flight recorder")
    ranks = [Rank(number, found[number][1]) for number in sorted(found)]
    return [_on_clock_of(ranks[0], rank) for rank in ranks]


def _on_clock_of(first: Rank, rank: Rank) -> Rank:
    offset = _offset(first, rank)
    if not offset:
        return rank
    head = {**rank.recorded.head, "clock": rank.recorded.head["clock"] - offset}
    events = [
        e._replace(start=e.start + offset, met=e.met + offset if e.met else 0.0, end=e.end + offset if e.end else 0.0)
        for e in rank.recorded.events
    ]
    return Rank(rank.number, dataclasses.replace(rank.recorded, head=head, events=events))


def _offset(first: Rank, rank: Rank) -> float:
    """Seconds that a rank's clock is behind the first one's: when all have met, it is the same moment for all."""
    if rank.recorded.head["machine"] == first.recorded.head["machine"]:
        return 0.0
    met = {(e.owner, e.step): e.met for e in first.operations if e.met}
    apart = [met[e.owner, e.step] - e.met for e in rank.operations if e.met and (e.owner, e.step) in met]
    return statistics.median(apart) if apart else rank.recorded.head["clock"] - first.recorded.head["clock"]


@dataclasses.dataclass(frozen=True)
class Operation:
    """What ranks were to do together.

    Attributes:
      line: of operations, in their order the same on all its ranks.
      number: on that line.
      by_rank: those that came.
      absent: ranks that should have come, and whose files would still tell it.
    """

    line: str
    number: int
    by_rank: Mapping[int, Event]
    absent: Sequence[int]

    @property
    def start(self) -> float:
        """When the first one came."""
        return min(event.start for event in self.by_rank.values())

    @property
    def differs(self) -> bool:
        """Whether it is not the same on all ranks."""
        return bool(self.absent) or len({(e.what, e.size_bytes) for e in self.by_rank.values()}) > 1


def operations(ranks: Sequence[Rank]) -> list[Operation]:
    """All that the ranks did together, in the order of time."""
    lines: dict[str, dict[int, dict[int, Event]]] = {}
    for rank in ranks:
        for event in rank.operations:
            lines.setdefault(event.owner, {}).setdefault(event.step, {})[rank.number] = event
    found = []
    for line, numbers in lines.items():
        members = [r for r in ranks if line.startswith("all ranks") or any(r.number in e for e in numbers.values())]
        begins = {
            rank.number: min((n for n, e in numbers.items() if rank.number in e), default=None) for rank in members
        }
        for number, by_rank in numbers.items():
            start = min(event.start for event in by_rank.values())
            absent = [
                rank.number
                for rank in members
                if rank.number not in by_rank and _remembers(rank, begins[rank.number], number, start)
            ]
            found.append(Operation(line, number, by_rank, absent))
    return sorted(found, key=lambda operation: operation.start)


def _remembers(rank: Rank, begin: int | None, number: int, start: float) -> bool:
    """Whether a rank's file would have an operation that began then, had the rank come."""
    if rank.recorded.complete:
        return True
    return number > begin if begin is not None else start > rank.recorded.events[0].start
