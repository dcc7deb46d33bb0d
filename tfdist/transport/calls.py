"""Calls: which calls a rank has entered and where it waits; and whether ranks wait for each other in a circle.

A mismatch of calls can be proved without a timeout. Every call that needs several ranks has a number on a *line*, for
example a channel. A rank publishes the number before it waits, and the numbers on a line never fall. A rank that waits
for number n of a line is held up by each rank that has not come to n there. If ranks hold each other up in a circle,
they wait for ever.

All ranks cannot be read at one moment. So they are read twice, and the second reading begins when the first is
complete. The first reading tells where ranks wait, the second what they have come to. This proves a circle: suppose one
of its ranks is the first to go on. It waits for a rank of the circle that had not come, and that would have to go on
earlier. (``tests/tfdist/transport/test_calls.py`` tries all orders of what two and three ranks do.)
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

from tfdist.transport.line_filter import may_hold

_LINE_BITS = 62  # as a signed number, and never 0


def line_number(name: str) -> int:
    """Return the number that identifies a line of operations, the same on all ranks."""
    found = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    return (found & ((1 << _LINE_BITS) - 1)) or 1


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that needs several ranks.

    Attributes:
      line: line of operations, see ``line_number``.
      number: number of the call on this line, from 1.
      ranks: ranks that must come; None: all ranks of the job.
    """

    line: int
    number: int
    ranks: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """What one rank has published about its calls.

    Attributes:
      waits: calls in which its program has been held up for long; None: unknown, or other threads of it may go on.
      entered: the last number that it has entered on each line, if there was room.
      complete: True if every other line that it has entered is in ``left_out``.
      left_out: filter of lines that had no room, see ``line_filter``.
    """

    waits: tuple[Call, ...] | None = None
    entered: Mapping[int, int] = dataclasses.field(default_factory=dict)
    complete: bool = False
    left_out: bytes = b""

    def knows(self, call: Call) -> bool:
        """Whether the report says anything about a call."""
        return call.line in self.entered or (self.complete and not may_hold(self.left_out, call.line))

    def has_not_come_to(self, call: Call) -> bool:
        """Whether the rank is known not to have entered a call."""
        return self.knows(call) and self.entered.get(call.line, 0) < call.number


def circle(before: Mapping[int, Report], after: Mapping[int, Report], ended: frozenset[int]) -> dict[int, Call]:
    """Return the ranks that wait for ever, for each other or for an ended rank, with the call that each waits in.

    Args:
      before: report of each rank in the first reading.
      after: report of each rank in the second reading, which began when the first was complete.
      ended: ranks that had ended in the first reading.
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
    """Return the ranks that cannot go on before ``rank``: they wait for it, or for a rank that waits for it.

    Args:
      rank: a rank that is in no call.
      before: report of each other rank in the first reading.
      after: report of each rank in the second reading, which began when the first was complete.
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
