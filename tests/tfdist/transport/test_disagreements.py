"""Ranks that disagree about their next call: all orders in which two and three ranks act, wait, and read each other.

A rank's program is a sequence of calls of all ranks or of some. The rank publishes the number of each call of all ranks
that it begins. It may publish that the call holds it up. It goes on when all ranks of the call have begun it. It may
pause for any time between two steps. Each rank that is held up reads the others, twice, and compares. No rank of equal
programs may ever be told to disagree. Where programs differ, some rank is told in every order, unless some wait for a
set.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from tfdist.transport.state_line import Held

Call = tuple[int, ...]  # a place, and the ranks of the call; only a place: all ranks
Program = tuple[Call, ...]
Rule = Callable[[Held, Held | None, Held | None], bool]


class Rank(NamedTuple):
    """State of one rank.

    Attributes:
      done: number of finished calls.
      begun: the rank has begun the next call.
      held: what it has published of a long wait. This may stay for a while when the wait is over.
    """

    done: int = 0
    begun: bool = False
    held: Held | None = None


def held(program: Program, place: int) -> Held:
    """Return what a rank publishes about a call of its program."""
    name, *ranks = program[place]
    number = sum(len(call) == 1 for call in program[: place + 1])
    return Held(name, 0, tuple(ranks)) if ranks else Held(name, number)


def come_to(programs: Sequence[Program], ranks: Sequence[Rank], rank: int, call: Call, number: int) -> bool:
    begun = programs[rank][: ranks[rank].done + ranks[rank].begun]
    return begun.count(call) >= number


def can_go_on(programs: Sequence[Program], ranks: Sequence[Rank], rank: int) -> bool:
    place = ranks[rank].done
    call = programs[rank][place]
    number = programs[rank][: place + 1].count(call)
    return all(come_to(programs, ranks, other, call, number) for other in call[1:] or range(len(programs)))


def steps(programs: Sequence[Program], ranks: tuple[Rank, ...]) -> Iterator[tuple[Rank, ...]]:
    """Yield the states that may follow: in each of them, one rank has made one step."""
    for rank, state in enumerate(ranks):
        following = []
        if state.begun:
            call = held(programs[rank], state.done)
            following += [state._replace(held=call)] if state.held != call else []
            following += [Rank(state.done + 1, held=state.held)] if can_go_on(programs, ranks, rank) else []
        elif state.held is not None:
            following.append(state._replace(held=None))
        elif state.done < len(programs[rank]):
            following.append(Rank(state.done, True))
        for new in following:
            yield (*ranks[:rank], new, *ranks[rank + 1 :])


def same_twice(own: Held, first: Held | None, second: Held | None) -> bool:
    return first == second and own.contradicts(second)


def told(programs: Sequence[Program], rule: Rule) -> tuple[bool, bool]:
    """Return whether some rank is told of a disagreement in some order; and in each order that comes to a stop."""
    start = (Rank(),) * len(programs)
    known, open_ = {start}, [start]
    after: dict[tuple[Rank, ...], list[tuple[Rank, ...]]] = {}
    while open_:
        now = open_.pop()
        after[now] = list(steps(programs, now))
        for new in after[now]:
            if new not in known:
                known.add(new)
                open_.append(new)
    some = any(disagree(programs, first, second, rule) for first in known for second in (first, *after[first]))
    stops = [s for s in known if not after[s] and any(r.done < len(p) for r, p in zip(s, programs, strict=True))]
    return some, bool(stops) and all(disagree(programs, stop, stop, rule) for stop in stops)


def disagree(programs: Sequence[Program], first: Sequence[Rank], second: Sequence[Rank], rule: Rule) -> bool:
    for own, other in itertools.permutations(range(len(programs)), 2):
        mine = first[own].held
        waits = first[own].begun and mine == held(programs[own], first[own].done) and first[own] == second[own]
        if waits and mine is not None and rule(mine, first[other].held, second[other].held):
            return True
    return False


A, B = (1,), (2,)
OF_0_1, OF_1_2 = (3, 0, 1), (4, 1, 2)
EQUAL: tuple[tuple[Program, ...], ...] = (
    ((A, B, A), (A, B, A)),
    ((A, OF_0_1, B), (A, OF_0_1, B)),
    ((A, OF_0_1, B), (A, OF_0_1, OF_1_2, B), (A, OF_1_2, B)),
    ((OF_0_1, A, B), (OF_0_1, A, OF_1_2, B), (A, OF_1_2, B)),
)
DIFFERENT: tuple[tuple[Program, ...], ...] = (
    ((A, B), (B, A)),
    ((A, A, B), (A, B)),
    ((A, B, A), (A, B, B), (A, B, A)),
    ((OF_0_1, A), (OF_0_1, B), (A,)),
)


@pytest.mark.parametrize("programs", EQUAL)
def test_equal_programs_never_disagree(programs: tuple[Program, ...]) -> None:
    assert told(programs, same_twice) == (False, False)


@pytest.mark.parametrize("programs", DIFFERENT)
def test_different_programs_disagree_in_every_order(programs: tuple[Program, ...]) -> None:
    assert told(programs, same_twice) == (True, True)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda own, first, second: second is not None and own.place != second.place,
        lambda own, first, second: second is not None and own.number != second.number,
        lambda own, first, second: second is not None and own != second and own.number == second.number,
    ],
)
def test_wrong_rules_are_found(wrong: Rule) -> None:
    found = [told(programs, wrong)[0] for programs in EQUAL] + [not told(programs, wrong)[1] for programs in DIFFERENT]
    assert any(found)
