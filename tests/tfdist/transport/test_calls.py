"""Detection of deadlocks: all orders in which two and three ranks act, wait, and read each other's state.

A rank's program is a sequence of collective calls, each on a line that some ranks share. The rank records each call
that it enters, may record that it waits, and continues when all ranks of the line have entered. It may pause for any
time between two steps. One rank, the observer, reads the others one by one, twice, and reports the ranks that wait
forever. The report must be correct in every order. If ranks wait forever, there must be a report.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from tfdist.transport.calls import Call, Report, circle, line_number, waiting_for

Line = tuple[int, ...]  # the ranks that share the line; a second line of the same ranks begins with -1
Program = tuple[Line, ...]
Judge = Callable[[Mapping[int, Report], Mapping[int, Report], frozenset[int]], Mapping[int, Call]]


class Rank(NamedTuple):
    """State of one rank's program.

    Attributes:
      done: number of finished calls.
      entered: the rank has entered the next call, and others can read this.
      says: the rank has recorded that it waits in this call. The record may still be there when the wait is over.
    """

    done: int = 0
    entered: bool = False
    says: bool = False


class World(NamedTuple):
    """State of all ranks, and the states that the observer has read in its first and its second pass."""

    ranks: tuple[Rank, ...]
    before: tuple[Rank | None, ...]
    after: tuple[Rank | None, ...]


def ranks_of(line: Line) -> tuple[int, ...]:
    return tuple(rank for rank in line if rank >= 0)


def number(program: Program, place: int) -> int:
    """Return the number of a call among the calls on the same line."""
    return program[: place + 1].count(program[place])


def come_to(programs: Sequence[Program], ranks: Sequence[Rank], rank: int, line: Line) -> int:
    reached = ranks[rank].done + ranks[rank].entered
    return programs[rank][:reached].count(line)


def can_go_on(programs: Sequence[Program], ranks: Sequence[Rank], rank: int) -> bool:
    line = programs[rank][ranks[rank].done]
    own = number(programs[rank], ranks[rank].done)
    return all(come_to(programs, ranks, other, line) >= own for other in ranks_of(line))


def steps(programs: Sequence[Program], ranks: tuple[Rank, ...]) -> Iterator[tuple[Rank, ...]]:
    """Yield the states that may follow: in each of them, one rank has made one step."""
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
    """Return whether a rank waits forever in every order. A step never blocks another rank, so one order suffices."""
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
    """Return the report that the rank has written in this state."""
    program = programs[rank]
    waits: tuple[Call, ...] = ()
    if state.says:
        line = program[state.done]
        waits = (Call(line_number(str(line)), number(program, state.done), ranks_of(line)),)
    reached = program[: state.done + state.entered]
    return Report(waits, {line_number(str(line)): reached.count(line) for line in reached}, complete=True)


def judged(programs: tuple[Program, ...], before: Sequence[Rank], after: Sequence[Rank], judge: Judge) -> set[int]:
    """Return the ranks that the judge reports to wait forever."""
    over = frozenset(rank for rank, state in enumerate(before) if state.done == len(programs[rank]))
    first, then = ({r: report(programs, r, state) for r, state in enumerate(states)} for states in (before, after))
    return set(judge(first, then, over))


def explore(programs: tuple[Program, ...], judge: Judge, observer: int = 0) -> int:
    """Try every order and return the number of states.

    Raises:
      AssertionError: a reported rank does not wait forever; or the observer does, and it was not reported.
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
            if not moves:  # only the observer can still read
                assert observer in judged(programs, world.ranks, world.ranks, judge), f"{programs}: it is not noticed"
        for new in following:
            # The observer reads while it waits, and drops its readings when the wait ends.
            new = new if new.ranks[observer].says else World(new.ranks, nothing, nothing)
            if new not in seen:
                seen.add(new)
                left.append(new)
    return len(seen)


def readings(programs: tuple[Program, ...], world: World, observer: int, judge: Judge) -> Iterator[World]:
    """Yield the states after the observer has read one more rank; when it has read all ranks twice, it judges."""
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
    """Judge wrongly: report all ranks if all have recorded a wait and not in the same call."""
    waits = {rank: report.waits[0] for rank, report in after.items() if report.waits}
    return waits if len(waits) == len(after) and len(set(waits.values())) > 1 else {}


def by_half_a_circle(
    before: Mapping[int, Report], after: Mapping[int, Report], ended: frozenset[int]
) -> Mapping[int, Call]:
    """Judge wrongly: do not check whether the rank that others wait for can continue."""
    return {
        rank: report.waits[0]
        for rank, report in before.items()
        if report.waits and any(other.has_not_come_to(report.waits[0]) for other in after.values())
    }


def by_numbers_from_before(
    before: Mapping[int, Report], after: Mapping[int, Report], ended: frozenset[int]
) -> Mapping[int, Call]:
    """Judge wrongly: read the calls that ranks have entered before the calls in which they wait."""
    return circle(after, before, ended)


@pytest.mark.parametrize("judge", [by_places, by_half_a_circle, by_numbers_from_before])
def test_wrong_protocols_are_found(judge: Judge) -> None:
    said = []
    for programs in (*itertools.product(OF_TWO, repeat=2), *itertools.islice(programs_of_three(2), 0, None, 23)):
        try:
            explore(programs, judge)
        except AssertionError as error:
            said.append(str(error))
    assert any("goes on" in words for words in said)  # the judge would end a healthy job


def test_what_is_not_known_is_not_concluded_from() -> None:
    here, there = Call(1, 5), Call(2, 7)
    waits = {0: Report((here,), {1: 5, 2: 6}, True), 1: Report((there,), {1: 4, 2: 7}, True)}
    assert circle(waits, waits, frozenset()).keys() == {0, 1}
    for unknown in (
        Report((there,), {2: 7}, False),  # its table has no more room for the first line
        Report(None, {1: 4, 2: 7}, True),  # another of its threads may continue
        Report((), {1: 4, 2: 7}, True),
        Report((there,), {1: 5, 2: 7}, True),  # the rank has entered this call
    ):
        assert not circle({**waits, 1: unknown}, {**waits, 1: unknown}, frozenset())
    assert not circle(waits, {0: waits[0]}, frozenset())  # its machine does not answer


def test_a_group_waits_for_its_own_ranks() -> None:
    """Rank 0 waits for 1, 1 for 2, and 2 computes."""
    waits = {
        0: Report((Call(1, 1, (0, 1)),), {1: 1}, True),
        1: Report((Call(2, 1, (1, 2)),), {2: 1}, True),
        2: Report((), {}, True),
    }
    assert not circle(waits, waits, frozenset())
    assert circle(waits, waits, frozenset({2})).keys() == {0, 1}


def test_who_waits_for_a_rank_that_is_in_no_call() -> None:
    """Rank 0 waits for 2, and 2 for 1, which saves, for example; 3 waits for 4, which computes."""
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
