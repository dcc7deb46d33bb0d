"""The rank that writes a save of several ranks: all orders in which two and three ranks act and read each other.

A rank's program is a sequence of saves and of collective calls of all ranks. A rank publishes its save and reads the
others one by one, repeatedly, until it can decide whether to write. It may pause for any time between two steps. In
every order, one rank at a time writes a path: the lowest rank that saves it at this position. The other ranks return
after the write, and all ranks finish their programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tfdist.transport.saves import (
    FAILURE_BYTES,
    MOST_SAVES,
    PASSED_ALL,
    Outcome,
    Phase,
    Position,
    Reading,
    Save,
    Saves,
    decide,
    decoded,
    encoded,
    in_the_way,
    outcome,
)
from tfdist.transport.state_line import SAVES_BYTES

CALL = "call"


class Saving(NamedTuple):
    """A line of a program that saves.

    Attributes:
      site: number of the line in the program.
      path: number of the path that this rank saves on this line.
    """

    site: int
    path: int


Program = tuple[Saving | str, ...]
Seen = tuple[int, tuple[Save, ...]]
NOTHING: Seen = (-1, ())


class Rank(NamedTuple):
    """State of one rank's program.

    Attributes:
      done: number of finished lines.
      position: published number of collective calls that the rank has entered.
      told: saves that the rank has published.
      own: the rank's current save; None outside a save.
      looks: number of other ranks that it has read in this pass.
      before: positions and saves of the others, as read in the last pass.
      seen: positions and saves of the others, as read in this pass.
      writes: True while the rank writes.
      saved: saves so far at this position, as ("path", path) and ("site", site).
    """

    done: int = 0
    position: int = 0
    told: tuple[Save, ...] = ()
    own: Save | None = None
    looks: int = 0
    before: tuple[Seen, ...] = ()
    seen: tuple[Seen, ...] = ()
    writes: bool = False
    saved: tuple[tuple[str, int], ...] = ()


class World(NamedTuple):
    """The ranks, and the set of all writes: path, rank and order of each."""

    ranks: tuple[Rank, ...]
    written: frozenset[tuple[int, int, tuple[int, int]]] = frozenset()


Protocol = Callable[[Save, dict[int, Reading], Sequence[int]], tuple[Outcome, int | None]]
Obstacle = Callable[[Save, dict[int, Reading], Sequence[int]], int | None]
Readings = Callable[[Seen, Seen], Reading]


def first_positions(before: Seen, now: Seen) -> Reading:
    return Reading(before[0], saves=Saves(now[1]))


def by_the_rules(own: Save, others: dict[int, Reading], near: Sequence[int]) -> tuple[Outcome, int | None]:
    return decide(own, others, near, [], lambda rank: True)


def tell(rank: Rank, save: Save) -> Rank:
    return rank._replace(own=save, told=(*(s for s in rank.told if s.path != save.path), save))


def begun(rank: Rank, line: Saving) -> Rank:
    saved = (*rank.saved, ("path", line.path), ("site", line.site))
    number, by_lines = saved.count(("path", line.path)), saved.count(("site", line.site))
    save = Save(line.path, line.site, rank.position, number, by_lines)
    return tell(rank._replace(saved=saved, looks=0, before=(), seen=()), save)


def left(rank: Rank, phase: Phase) -> Rank:
    assert rank.own is not None
    over = tell(rank, rank.own._replace(phase=phase))
    return over._replace(own=None, done=rank.done + 1, writes=False, looks=0, before=(), seen=())


class Explorer:
    """Tries every order of the steps of some ranks.

    Args:
      programs: program of each rank.
      protocol: function that decides whether a rank writes, waits or returns.
      obstacle: function that returns the rank for which a rank must wait before it writes; None: it may write.
      readings: function that combines the readings of the last pass and of this pass.
      in_order: True: check that the lowest rank writes and that higher ranks wait for it.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        protocol: Protocol = by_the_rules,
        obstacle: Obstacle = in_the_way,
        readings: Readings = first_positions,
        in_order: bool = True,
    ) -> None:
        self.programs = programs
        self._protocol, self._obstacle, self._readings, self._in_order = protocol, obstacle, readings, in_order
        self._others = [[o for o in range(len(programs)) if o != r] for r in range(len(programs))]

    def explore(self) -> int:
        """Try every order and return the number of states."""
        first = World((Rank(),) * len(self.programs))
        known, open_ = {first}, [first]
        before: dict[World, list[World]] = {}
        while open_:
            world = open_.pop()
            for new in self._steps(world):
                before.setdefault(new, []).append(world)
                if new not in known:
                    known.add(new)
                    open_.append(new)
        # The end can be reached from every state.
        ends = {w for w in known if all(r.done == len(p) for r, p in zip(w.ranks, self.programs, strict=True))}
        open_ = list(ends)
        while open_:
            for world in before.get(open_.pop(), []):
                if world not in ends:
                    ends.add(world)
                    open_.append(world)
        assert ends == known, f"{self.programs}: ranks wait for each other: {next(iter(known - ends))}"
        return len(known)

    def _steps(self, world: World) -> Iterator[World]:
        for number, rank in enumerate(world.ranks):
            new = self._step(world, number, rank)
            if new is not None:
                yield new

    def _step(self, world: World, number: int, rank: Rank) -> World | None:
        program = self.programs[number]
        if rank.done == len(program):
            return None
        line = program[rank.done]
        if isinstance(line, str):
            return self._in_a_call(world, number, rank)
        if rank.own is None:
            return self._with(world, number, begun(rank, line))
        if rank.writes:
            written = world.written | {(line.path, number, rank.own.order)}
            return self._with(world, number, left(rank, Phase.WRITTEN))._replace(written=written)
        if rank.looks < len(self._others[number]):
            other = world.ranks[self._others[number][rank.looks]]
            over = other.done == len(self.programs[self._others[number][rank.looks]])
            seen = (*rank.seen, (PASSED_ALL if over else other.position, other.told))
            return self._with(world, number, rank._replace(looks=rank.looks + 1, seen=seen))
        return self._decision(world, number, rank)

    def _in_a_call(self, world: World, number: int, rank: Rank) -> World | None:
        calls = sum(isinstance(line, str) for line in self.programs[number][: rank.done + 1])
        if rank.position < calls:
            return self._with(world, number, rank._replace(position=calls, saved=()))
        if all(other.position >= calls for other in world.ranks):
            return self._with(world, number, rank._replace(done=rank.done + 1))
        return None

    def _decision(self, world: World, number: int, rank: Rank) -> World:
        assert rank.own is not None
        others = self._others[number]
        before = rank.before or (NOTHING,) * len(others)
        readings = {other: self._readings(before[i], rank.seen[i]) for i, other in enumerate(others)}
        again = rank._replace(looks=0, before=rank.seen, seen=())
        if rank.own.phase is Phase.DECIDES:
            found, _ = self._protocol(rank.own, readings, [other for other in others if other < number])
            if found.waits:
                return self._with(world, number, again)
            if found is Outcome.DONE:
                self._check_left(world, number, rank.own)
                return self._with(world, number, left(rank, Phase.LEFT))
            return self._with(world, number, tell(again, rank.own._replace(phase=Phase.WRITES)))
        busy = self._obstacle(rank.own, readings, others)
        if busy is not None:
            back = tell(again, rank.own._replace(phase=Phase.DECIDES)) if busy < number else again
            return self._with(world, number, back)
        self._check_alone(world, number, rank.own)
        return self._with(world, number, rank._replace(writes=True))

    def _with(self, world: World, number: int, rank: Rank) -> World:
        return world._replace(ranks=(*world.ranks[:number], rank, *world.ranks[number + 1 :]))

    def _check_left(self, world: World, number: int, own: Save) -> None:
        by_lower = [order for path, rank, order in world.written if path == own.path and rank < number]
        assert any(order >= own.order for order in by_lower), f"{self.programs}: {number} has not waited for {own}"

    def _check_alone(self, world: World, number: int, own: Save) -> None:
        for other, rank in enumerate(world.ranks):
            busy = rank.writes and rank.own is not None and rank.own.path == own.path
            assert not busy, f"{self.programs}: {other} and {number} write at a time"
        for lower in range(number if self._in_order else 0):
            assert own.order not in orders(self.programs[lower], own.path), f"{self.programs}: {lower} was to write"


def orders(program: Program, path: int) -> set[tuple[int, int]]:
    """Return (position, number) of each of a program's saves of a path."""
    found, position, number = set(), 0, 0
    for line in program:
        if isinstance(line, str):
            position, number = position + 1, 0
        elif line.path == path:
            number += 1
            found.add((position, number))
    return found


def some_of(base: Program) -> list[Program]:
    """Return all variants of a program that leave out some of its saves, but no calls."""
    choices = [(True,) if isinstance(line, str) else (True, False) for line in base]
    return [tuple(itertools.compress(base, chosen)) for chosen in itertools.product(*choices)]


A, B, C, D = 1, 2, 3, 4
BASES: tuple[Program, ...] = (
    (Saving(11, A), CALL, Saving(12, B), Saving(13, A), CALL),
    (Saving(11, A), Saving(12, A), CALL, Saving(13, A)),
    (Saving(11, A), Saving(12, B), Saving(13, A)),
)
# On some lines, each rank saves a path of its own.
OWN_PATHS: tuple[tuple[Program, ...], ...] = (
    ((Saving(11, A), CALL), (Saving(11, B), CALL), (Saving(11, C), CALL)),
    ((Saving(11, A), Saving(11, D)), (Saving(11, B), Saving(11, D)), (Saving(11, C), Saving(11, D))),
    ((Saving(11, A), Saving(12, D), CALL), (Saving(11, B), Saving(12, D), CALL)),
)


def of_two() -> Iterator[tuple[Program, ...]]:
    for base in BASES:
        yield from itertools.product(some_of(base), repeat=2)


def test_two_ranks_in_every_order() -> None:
    assert sum(Explorer(programs).explore() for programs in of_two()) > 10_000


@pytest.mark.parametrize(
    "base", [(Saving(11, A), CALL), pytest.param(BASES[0][:3], marks=pytest.mark.long("the first"))]
)
def test_three_ranks_in_every_order(base: Program) -> None:
    assert sum(Explorer(programs).explore() for programs in itertools.product(some_of(base), repeat=3)) > 5_000


@pytest.mark.parametrize("programs", OWN_PATHS)
def test_paths_of_each_rank_are_waited_for_by_nobody(programs: tuple[Program, ...]) -> None:
    Explorer(programs[:2]).explore()
    own = Save(programs[1][0].path, 11, 0)  # type: ignore[union-attr]
    other = Save(programs[0][0].path, 11, 0, phase=Phase.WRITES)  # type: ignore[union-attr]
    assert outcome(own, Reading(0, saves=Saves((other,)))) is Outcome.AWAY


def at_once(own: Save, others: dict[int, Reading], near: Sequence[int]) -> tuple[Outcome, int | None]:
    """Decide without waiting, as if positions had no meaning; saves of other threads are similar."""
    return Outcome.AWAY, None


def test_one_at_a_time_writes_whatever_the_positions_say() -> None:
    for programs in ((BASES[0][:1],) * 3, *itertools.islice(of_two(), 0, None, 9)):
        Explorer(programs, at_once, in_order=False).explore()


def saves_from_before(before: Seen, now: Seen) -> Reading:
    return Reading(now[0], saves=Saves(before[1]))


def by_positions_alone(own: Save, others: dict[int, Reading], near: Sequence[int]) -> tuple[Outcome, int | None]:
    """Decide without the order of a path's saves: any earlier save of the path counts as this save."""
    for rank in near:
        found = others[rank].saves.of(own.path)
        if found is not None:
            return (Outcome.DONE if found.phase > Phase.WRITES else Outcome.AT_WORK), rank
        if others[rank].position <= own.position:
            return Outcome.OPEN, rank
    return Outcome.AWAY, None


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"readings": saves_from_before}, "was to write"),
        ({"protocol": at_once}, "was to write"),
        ({"protocol": at_once, "obstacle": lambda *_: None, "in_order": False}, "write at a time"),
        ({"protocol": by_positions_alone}, "has not waited"),
        ({"protocol": lambda *_: (Outcome.OPEN, 0)}, "wait for each other"),
    ],
)
def test_wrong_protocols_are_found(wrong: dict[str, Any], words: str) -> None:
    said = []
    for programs in of_two():
        try:
            Explorer(programs, **wrong).explore()
        except AssertionError as error:
            said.append(str(error))
    assert any(words in one for one in said), said[:3]


OWN = Save(A, 11, 5)


@pytest.mark.parametrize(
    "other, expected",
    [
        (Reading(5), Outcome.OPEN),
        (Reading(6), Outcome.AWAY),
        (Reading(5, over=True), Outcome.AWAY),
        (Reading(5, silent=True), Outcome.AWAY),
        (Reading(PASSED_ALL), Outcome.AWAY),  # the other rank has given up
        (Reading(5, saves=Saves((OWN._replace(phase=Phase.WRITES),))), Outcome.AT_WORK),
        (Reading(5, silent=True, saves=Saves((OWN._replace(phase=Phase.WRITES),))), Outcome.AT_WORK),
        (Reading(5, over=True, saves=Saves((OWN._replace(phase=Phase.WRITES),))), Outcome.AWAY),  # killed in the write
        (Reading(5, over=True, saves=Saves((OWN._replace(phase=Phase.WRITTEN),))), Outcome.DONE),
        # During the write, the other rank has entered a call that waits for this rank, so the write is done. If another
        # thread writes, the write may still run.
        (Reading(6, saves=Saves((OWN._replace(phase=Phase.WRITES),))), Outcome.DONE),
        (Reading(6, saves=Saves((OWN._replace(phase=Phase.WRITES, background=True),))), Outcome.AT_WORK),
        (Reading(5, saves=Saves((OWN._replace(phase=Phase.FAILED),))), Outcome.FAILED),
        # The other rank has saved the path again since then, or is still saving it again.
        (Reading(5, saves=Saves((OWN._replace(number=2, phase=Phase.WRITTEN),))), Outcome.DONE),
        (Reading(5, saves=Saves((OWN._replace(number=2, phase=Phase.FAILED),))), Outcome.DONE),
        (Reading(5, saves=Saves((OWN._replace(number=2, phase=Phase.WRITES),))), Outcome.AT_WORK),
        # The other rank saved the path at an earlier position, alone.
        (Reading(5, saves=Saves((OWN._replace(position=4, phase=Phase.WRITTEN),))), Outcome.OPEN),
        (Reading(6, saves=Saves((OWN._replace(position=4, phase=Phase.WRITTEN),))), Outcome.AWAY),
        (Reading(5, saves=Saves((OWN._replace(position=4, phase=Phase.WRITES, background=True),))), Outcome.AT_WORK),
        # The other rank saves another path: on another line, on this line, and on this line at an earlier position.
        (Reading(5, saves=Saves((OWN._replace(path=B, site=12),))), Outcome.OPEN),
        (Reading(5, saves=Saves((OWN._replace(path=B),))), Outcome.AWAY),
        (Reading(5, saves=Saves((OWN._replace(path=B, position=4),))), Outcome.OPEN),
    ],
)
def test_what_another_rank_is_about(other: Reading, expected: Outcome) -> None:
    assert outcome(OWN, other) is expected


def test_what_another_machine_has_written_is_looked_for() -> None:
    """Ranks 0 and 1 are on one machine, 2 and 3 on another machine, which may not see the first machine's files."""
    written = Reading(5, saves=Saves((OWN._replace(phase=Phase.WRITTEN),)))
    left = Reading(5, saves=Saves((OWN._replace(phase=Phase.LEFT),)))
    passed = Reading(6)

    def of_2(others: dict[int, Reading], sees: bool) -> tuple[Outcome, int | None]:
        return decide(
            OWN, others, [], [0, 1], lambda rank: sees and others[rank].saves.latest[0].phase is Phase.WRITTEN
        )

    assert of_2({0: written, 1: left}, sees=True) == (Outcome.DONE, 0)
    assert of_2({0: written, 1: left}, sees=False) == (Outcome.AWAY, None)
    assert of_2({0: written, 1: Reading(5)}, sees=False) == (Outcome.OPEN, 1)
    assert of_2({0: passed, 1: written}, sees=True) == (Outcome.DONE, 1)
    assert of_2({0: passed, 1: passed}, sees=True) == (Outcome.AWAY, None)

    def of_3(others: dict[int, Reading]) -> tuple[Outcome, int | None]:
        return decide(OWN, others, [2], [0, 1], lambda rank: False)

    assert of_3({0: written, 1: left, 2: Reading(5)}) == (Outcome.OPEN, 2)
    assert of_3({0: written, 1: left, 2: left}) == (Outcome.DONE, 2)
    assert of_3({0: written, 1: left, 2: written}) == (Outcome.DONE, 2)
    assert of_3({0: written, 1: left, 2: passed}) == (Outcome.AWAY, None)


def test_what_is_told_is_read() -> None:
    assert decoded(b"") == Saves()
    told = tuple(
        Save(n - 2**61, -n, 2**62 - n, n, n + 1, Phase(n % 5 + 1), n % 2 == 1, n * 2**55) for n in range(MOST_SAVES)
    )
    for failures in (), ((3, bytes(FAILURE_BYTES)),), ((4, b"four"), (-5, b""), (6, b"six")):
        whole = encoded(Saves(told, failures))
        assert len(whole) <= SAVES_BYTES and decoded(whole) == Saves(told, failures)
    many = tuple((n, bytes(200)) for n in range(9))
    whole = encoded(Saves((told[0], *told), many))
    assert len(whole) <= SAVES_BYTES and decoded(whole) == Saves(told, many[-4:])


def test_a_position_grows_and_is_the_same_where_it_is_counted_anew() -> None:
    told: list[int] = []
    one, other = Position(told.append), Position(lambda position: None)
    assert one.now == 0 and [one.next(), one.next()] == [1, 2] and one.now == 2
    one.count()
    assert told == [3] and one.now == 3
    for position in (one, other):
        position.count_anew()
    assert one.now == other.now > 3
    one.count()
    assert one.now == other.now + 1
    one.pass_all()
    assert one.now == one.next() == told[-1] == PASSED_ALL
