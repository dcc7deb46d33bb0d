"""Calls: what a rank has entered and where it waits; and whether ranks wait for each other in a circle.

A mismatch of calls is a fact about calls, not about time. Whatever needs several ranks stands on a *line* (a channel,
say), and has a number there. A rank writes down the number before it waits: that number never falls. A rank that waits
for number n of a line is held up by each rank that has not come to n there. It will be so for ever if that rank is held
up likewise, and the circle closes.

What the ranks have written is not read at one moment, and a line is not read in one piece. So it is read twice, and all
of the second reading comes after all of the first: of the first counts where ranks wait, of the second what they have
come to. Then the first rank of the circle to go on cannot be: one that it waits for had not come, and would have to go
on before it. (``tests/tfdist/transport/test_calls.py`` tries all orders of what two and three ranks do.)
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

_LINE_BITS = 62  # as a signed number, and never 0


def line_number(name: str) -> int:
    """What stands for a line of operations: the same on all ranks, and nobody else's."""
    found = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    return (found & ((1 << _LINE_BITS) - 1)) or 1


@dataclasses.dataclass(frozen=True)
class Call:
    """Something that needs several ranks.

    Attributes:
      line: of operations, see ``line_number``.
      number: on this line, from 1.
      ranks: that must come; None: all of the job.
    """

    line: int
    number: int
    ranks: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """What one rank has written of its calls.

    Attributes:
      waits: in which its program has been held up for long; None: it is not known, or others of its threads may go on.
      entered: the last number of each line.
      complete: no line is left out of ``entered``.
    """

    waits: tuple[Call, ...] | None = None
    entered: Mapping[int, int] = dataclasses.field(default_factory=dict)
    complete: bool = False

    def knows(self, call: Call) -> bool:
        """Whether it tells anything about a call."""
        return self.complete or call.line in self.entered

    def has_not_come_to(self, call: Call) -> bool:
        """Whether it is known not to have entered a call."""
        return self.knows(call) and self.entered.get(call.line, 0) < call.number


def circle(before: Mapping[int, Report], after: Mapping[int, Report], ended: frozenset[int]) -> dict[int, Call]:
    """The ranks that wait for each other for ever, or for a rank that has ended, with the call each waits in.

    Args:
      before: of each rank, as it was read first.
      after: of each rank, as it was read when all of the former had been.
      ended: the ranks that had ended when they were read first.
    """
    held = {rank: report.waits for rank, report in before.items() if report.waits and rank not in ended}
    while True:
        never = held.keys() | ended
        left = {
            rank: waits for rank, waits in held.items() if all(_held_up(call, rank, after, never) for call in waits)
        }
        if len(left) == len(held):
            return {rank: waits[0] for rank, waits in left.items()}
        held = left


def waiting_for(rank: int, before: Mapping[int, Report], after: Mapping[int, Report]) -> set[int]:
    """The ranks that wait for one that is in no call, or for another that does: none goes on before it.

    Args:
      rank: which.
      before: of each other rank, as it was read first.
      after: of each rank, as it was read when all of the former had been.
    """
    found = {rank}
    while True:
        more = {
            other
            for other, report in before.items()
            if other not in found and report.waits and all(_held_up(c, other, after, found) for c in report.waits)
        }
        if not more:
            return found - {rank}
        found |= more


def _held_up(call: Call, rank: int, after: Mapping[int, Report], by: frozenset[int] | set[int]) -> bool:
    awaited = by if call.ranks is None else by & set(call.ranks)
    return any(other in after and after[other].has_not_come_to(call) for other in awaited if other != rank)
