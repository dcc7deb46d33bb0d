"""Ranks: their files on one clock, and their common operations."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tfdist.record.recorded import Event, Recorded, read


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank's file.

    Attributes:
      number: number of the rank.
      recorded: content of the file, with the events' times on the clock of the first rank that has a file.
    """

    number: int
    recorded: Recorded

    @property
    def operations(self) -> list[Event]:
        """Events that needed other ranks."""
        return [event for event in self.recorded.events if not event.kind]

    @property
    def spans(self) -> list[Event]:
        """Spans, which only a timeline has."""
        return [event for event in self.recorded.events if event.kind]


def load(names: Iterable[str]) -> list[Rank]:
    """Return the ranks of some files, by number.

    Args:
      names: names of files, and of folders that hold no other files.

    Raises:
      ValueError: a file is not from a flight recorder, two files are of the same rank, or there is no file.
      OSError: a file cannot be read.
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
    """Return by how many seconds a rank's clock is behind the first rank's: all ranks meet at the same moment."""
    if rank.recorded.head["machine"] == first.recorded.head["machine"]:
        return 0.0
    met = {(e.owner, e.step): e.met for e in first.operations if e.met}
    apart = [met[e.owner, e.step] - e.met for e in rank.operations if e.met and (e.owner, e.step) in met]
    return statistics.median(apart) if apart else rank.recorded.head["clock"] - first.recorded.head["clock"]


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation that several ranks had to do together.

    Attributes:
      line: line of operations, which has the same order on all its ranks.
      number: number of the operation on this line.
      by_rank: event of each rank that came.
      absent: ranks that should have come, and have files that would still show it.
    """

    line: str
    number: int
    by_rank: Mapping[int, Event]
    absent: Sequence[int]

    @property
    def start(self) -> float:
        """When the first rank came."""
        return min(event.start for event in self.by_rank.values())

    @property
    def differs(self) -> bool:
        """Whether the operation is not the same on all ranks."""
        return bool(self.absent) or len({(e.what, e.size_bytes) for e in self.by_rank.values()}) > 1


def operations(ranks: Sequence[Rank]) -> list[Operation]:
    """Return all operations that the ranks did together, in the order of time."""
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
    """Whether a rank's file would still show an operation that began at ``start``, if the rank had come."""
    if rank.recorded.complete:
        return True
    return number > begin if begin is not None else start > rank.recorded.events[0].start
