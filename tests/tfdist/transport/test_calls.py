"""Who waits for whom: all orders of what two and three ranks do, are held up in, and read of each other.

A rank's program is a row of calls, each on a line that some ranks share. It writes down what it comes to, is stopped
for any time between any two steps, says that it waits, or does not get to that, and goes on when all have come. One
rank reads the others one by one, twice, and then says who waits for ever. That must be true, in every order; and
where ranks wait for ever, it must be said.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from tfdist.transport.calls import Call, Report, circle, line_number, waiting_for

Line = tuple[int, ...]  # known by the ranks that share it; a second one of the same ranks has -1 in front
Program = tuple[Line, ...]
Judge = Callable[[Mapping[int, Report], Mapping[int, Report], frozenset[int]], Mapping[int, Call]]


class Rank(NamedTuple):
    """A rank in the midst of its program.

    Attributes:
      done: calls that are over.
      entered: it has come to the next one, and others can read that.
      says: it has said that it waits there; it may say so when that is over, too, and stops before it takes it back.
    """

    done: int = 0
    entered: bool = False
    says: bool = False


class World(NamedTuple):
    """All of it: the ranks, and what one of them has read of the others, first and then."""

    ranks: tuple[Rank, ...]
    before: tuple[Rank | None, ...]
    after: tuple[Rank | None, ...]


def ranks_of(line: Line) -> tuple[int, ...]:
    return tuple(rank for rank in line if rank >= 0)


def number(program: Program, place: int) -> int:
    """Of a call on its line."""
    return program[: place + 1].count(program[place])


def come_to(programs: Sequence[Program], ranks: Sequence[Rank], rank: int, line: Line) -> int:
    reached = ranks[rank].done + ranks[rank].entered
    return programs[rank][:reached].count(line)


def can_go_on(programs: Sequence[Program], ranks: Sequence[Rank], rank: int) -> bool:
    line = programs[rank][ranks[rank].done]
    own = number(programs[rank], ranks[rank].done)
    return all(come_to(programs, ranks, other, line) >= own for other in ranks_of(line))


def steps(programs: Sequence[Program], ranks: tuple[Rank, ...]) -> Iterator[tuple[Rank, ...]]:
    """What may happen next: one rank does one thing."""
    for rank, state in enumerate(ranks):
        if state.done == len(programs[rank]):
            continue
        if not state.entered:
            following = [Rank(state.done, True)]
        else:
            following = [] if state.says else [Rank(state.done, True, True)]
            if can_go_on(programs, ranks, rank):
                following.append(Rank(state.done + 1))
        for new in following:
            yield (*ranks[:rank], new, *ranks[rank + 1 :])


@functools.cache
def is_held_up_for_ever(programs: tuple[Program, ...], ranks: tuple[Rank, ...], rank: int) -> bool:
    """Whatever happens: what one rank does never holds another one up, so that any order shows it."""
    done = ranks[rank].done
    while True:
        if ranks[rank].done > done:
            return False
        for number_, state in enumerate(ranks):
            if state.done == len(programs[number_]):
                continue
            if not state.entered or can_go_on(programs, ranks, number_):
                new = Rank(state.done + state.entered, not state.entered)
                ranks = (*ranks[:number_], new, *ranks[number_ + 1 :])
                break
        else:
            return True


@functools.cache
def report(programs: tuple[Program, ...], rank: int, state: Rank) -> Report:
    """What the rank has written by then."""
    program = programs[rank]
    waits: tuple[Call, ...] = ()
    if state.says:
        line = program[state.done]
        waits = (Call(line_number(str(line)), number(program, state.done), ranks_of(line)),)
    reached = program[: state.done + state.entered]
    return Report(waits, {line_number(str(line)): reached.count(line) for line in reached}, complete=True)


def judged(programs: tuple[Program, ...], before: Sequence[Rank], after: Sequence[Rank], judge: Judge) -> set[int]:
    """The ranks that are said to wait for ever."""
    over = frozenset(rank for rank, state in enumerate(before) if state.done == len(programs[rank]))
    first, then = ({r: report(programs, r, state) for r, state in enumerate(states)} for states in (before, after))
    return set(judge(first, then, over))


def explore(programs: tuple[Program, ...], judge: Judge, observer: int = 0) -> int:
    """Try every order; the number of states.

    Raises:
      AssertionError: a rank was said to wait for ever that does not; or the observer does, and it was never said.
    """
    nothing: tuple[Rank | None, ...] = (None,) * len(programs)
    first = World((Rank(),) * len(programs), nothing, nothing)
    seen, left = {first}, [first]
    while left:
        world = left.pop()
        moves = list(steps(programs, world.ranks))
        following = [world._replace(ranks=ranks) for ranks in moves]
        if world.ranks[observer].says:
            following += readings(programs, world, observer, judge)
            if not moves:  # but the observer's eyes
                assert observer in judged(programs, world.ranks, world.ranks, judge), f"{programs}: it is not noticed"
        for new in following:
            # It reads while it waits, and what it has read belongs to that wait.
            new = new if new.ranks[observer].says else World(new.ranks, nothing, nothing)
            if new not in seen:
                seen.add(new)
                left.append(new)
    return len(seen)


def readings(programs: tuple[Program, ...], world: World, observer: int, judge: Judge) -> Iterator[World]:
    """The observer reads one rank more, in any order; when it has read all twice, it judges."""
    others = [rank for rank in range(len(programs)) if rank != observer]
    which = 1 if any(world.before[rank] is None for rank in others) else 2
    for rank in others:
        if world[which][rank] is not None:
            continue
        known = list(world[which])
        known[rank] = world.ranks[rank]
        new = world._replace(before=tuple(known)) if which == 1 else world._replace(after=tuple(known))
        if all(new.after[other] is not None for other in others):
            own = world.ranks[observer]
            before, after = (
                [state if state is not None else own for state in states] for states in (new.before, new.after)
            )
            for accused in judged(programs, before, after, judge):
                assert is_held_up_for_ever(programs, world.ranks, accused), f"{programs}: rank {accused} goes on"
            nothing: tuple[Rank | None, ...] = (None,) * len(programs)
            new = World(world.ranks, nothing, nothing)
        yield new


BOTH, AGAIN = (0, 1), (-1, 0, 1)
ALL, FIRST, LAST, ENDS = (0, 1, 2), (0, 1), (1, 2), (0, 2)
OF_TWO = [p for length in range(4) for p in itertools.product((BOTH, AGAIN), repeat=length)]


def programs_of_three(longest: int) -> Iterator[tuple[Program, ...]]:
    rows = [
        [
            p
            for n in range(longest + 1)
            for p in itertools.product([x for x in (ALL, FIRST, LAST, ENDS) if r in x], repeat=n)
        ]
        for r in range(3)
    ]
    yield from itertools.product(*rows)


def test_two_ranks_in_every_order() -> None:
    states = sum(explore(programs, circle) for programs in itertools.product(OF_TWO, repeat=2))
    assert states > 5_000


def test_three_ranks_in_every_order() -> None:
    states = sum(explore(programs, circle) for programs in itertools.islice(programs_of_three(2), 0, None, 23))
    assert states > 10_000


@pytest.mark.long("each 23rd of them is tried without it")
def test_all_short_programs_of_three_ranks() -> None:
    start = time.monotonic()
    tried = list(programs_of_three(2))
    states = sum(explore(programs, circle) for programs in tried)
    print(f"{len(tried)} programs, {states} states, {time.monotonic() - start:.0f} s")


def by_places(before: Mapping[int, Report], after: Mapping[int, Report], ended: frozenset[int]) -> Mapping[int, Call]:
    """A judge who asks whether all say that they wait, and not in one place."""
    waits = {rank: report.waits[0] for rank, report in after.items() if report.waits}
    return waits if len(waits) == len(after) and len(set(waits.values())) > 1 else {}


def by_half_a_circle(
    before: Mapping[int, Report], after: Mapping[int, Report], ended: frozenset[int]
) -> Mapping[int, Call]:
    """A judge who does not ask whether the rank that is waited for can go on."""
    return {
        rank: report.waits[0]
        for rank, report in before.items()
        if report.waits and any(other.has_not_come_to(report.waits[0]) for other in after.values())
    }


def by_numbers_from_before(
    before: Mapping[int, Report], after: Mapping[int, Report], ended: frozenset[int]
) -> Mapping[int, Call]:
    """A judge who looks at what ranks have come to, and only then at where they wait."""
    return circle(after, before, ended)


@pytest.mark.parametrize("judge", [by_places, by_half_a_circle, by_numbers_from_before])
def test_wrong_protocols_are_found(judge: Judge) -> None:
    said = []
    for programs in (*itertools.product(OF_TWO, repeat=2), *itertools.islice(programs_of_three(2), 0, None, 23)):
        try:
            explore(programs, judge)
        except AssertionError as error:
            said.append(str(error))
    assert any("goes on" in words for words in said)  # a healthy job would be ended


def test_what_is_not_known_is_not_concluded_from() -> None:
    here, there = Call(1, 5), Call(2, 7)
    waits = {0: Report((here,), {1: 5, 2: 6}, True), 1: Report((there,), {1: 4, 2: 7}, True)}
    assert circle(waits, waits, frozenset()).keys() == {0, 1}
    for unknown in (
        Report((there,), {2: 7}, False),  # the first line has no room in its table any more
        Report(None, {1: 4, 2: 7}, True),  # another thread of its may go on
        Report((), {1: 4, 2: 7}, True),
        Report((there,), {1: 5, 2: 7}, True),  # it has been here
    ):
        assert not circle({**waits, 1: unknown}, {**waits, 1: unknown}, frozenset())
    assert not circle(waits, {0: waits[0]}, frozenset())  # its machine does not answer


def test_a_group_waits_for_its_own_ranks() -> None:
    """0 waits for 1, 1 for 2, and 2 computes."""
    waits = {
        0: Report((Call(1, 1, (0, 1)),), {1: 1}, True),
        1: Report((Call(2, 1, (1, 2)),), {2: 1}, True),
        2: Report((), {}, True),
    }
    assert not circle(waits, waits, frozenset())
    assert circle(waits, waits, frozenset({2})).keys() == {0, 1}


def test_who_waits_for_a_rank_that_is_in_no_call() -> None:
    """0 waits for 2, and 2 for 1, which saves, say; 3 waits for 4, which computes."""
    waits = {
        0: Report((Call(1, 1, (0, 2)),), {1: 1}, True),
        1: Report(None, {2: 4}, True),
        2: Report((Call(2, 5, (1, 2)),), {2: 5}, True),
        3: Report((Call(3, 1, (3, 4)),), {3: 1}, True),
        4: Report((), {}, True),
    }
    others = {rank: report for rank, report in waits.items() if rank != 1}
    assert waiting_for(1, others, waits) == {0, 2}
    assert waiting_for(1, others, {**waits, 1: Report(None, {2: 5}, True)}) == set()
    assert waiting_for(1, others, {**waits, 2: Report((), {2: 5, 1: 1}, True)}) == {2}
