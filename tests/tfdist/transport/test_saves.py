"""The rank that writes a save of several ranks: all orders in which two and three ranks act and read each other.

A rank's program is a sequence of saves and of collective calls of all ranks. A rank publishes its save and reads the
others one by one, of each the position and then the saves. It does so repeatedly, until it can decide whether to write.
It may pause for any time between two steps. In every order, one rank writes a save, and one at a time a path. If rank 0
saves it, it writes. The other ranks return after the write. All ranks finish their programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tfdist.transport.saves import (
    BACKGROUND,
    MOST_SAVES,
    PASSED_ALL,
    Outcome,
    Phase,
    Position,
    Reading,
    Save,
    decide,
    outcome,
)
from tfdist.transport.saving import _FAILURE_BYTES, decoded, encoded
from tfdist.transport.state_line import SAVES_BYTES

CALL = "call"


Program = tuple[int | str, ...]  # a line is a call, or the number of the path that it saves
Seen = tuple[int, tuple[Save, ...]]


class Rank(NamedTuple):
    """State of one rank's program.

    Attributes:
      done: number of finished lines.
      position: published number of collective calls that the rank has entered.
      told: saves that the rank has published.
      own: the rank's current save; None outside a save.
      looks: number of steps in which it has read the others in this pass, two for each.
      seen: positions and saves of the others, as read in this pass.
      writes: True while the rank writes.
      saved: paths of the saves so far at this position.
    """

    done: int = 0
    position: int = 0
    told: tuple[Save, ...] = ()
    own: Save | None = None
    looks: int = 0
    seen: tuple[Seen, ...] = ()
    writes: bool = False
    saved: tuple[int, ...] = ()


class World(NamedTuple):
    """The ranks, and the set of all writes: path, rank and order of each."""

    ranks: tuple[Rank, ...]
    written: frozenset[tuple[int, int, tuple[int, int]]] = frozenset()


Protocol = Callable[[Save, int, dict[int, Reading]], tuple[Outcome, int | None]]


def by_the_rules(own: Save, rank: int, others: dict[int, Reading]) -> tuple[Outcome, int | None]:
    return decide(own, rank, others, sorted(others), lambda: True)


def tell(rank: Rank, save: Save) -> Rank:
    return rank._replace(own=save, told=(*(s for s in rank.told if s.path != save.path), save))


def begun(rank: Rank, path: int) -> Rank:
    saved = (*rank.saved, path)
    save = Save(path, rank.position, saved.count(path))
    return tell(rank._replace(saved=saved, looks=0, seen=()), save)


def left(rank: Rank, phase: Phase) -> Rank:
    assert rank.own is not None
    over = tell(rank, rank.own._replace(phase=phase))
    return over._replace(own=None, done=rank.done + 1, writes=False, looks=0, seen=())


class Explorer:
    """Tries every order of the steps of some ranks.

    Args:
      programs: program of each rank.
      protocol: function that decides whether a rank writes, waits or returns.
      says_so: True: a rank publishes that it writes, and reads the others again, before it writes.
      position_first: True: a rank reads another one's position before its saves.
      in_order: True: check that rank 0 writes what it saves, and that the others wait for it.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        protocol: Protocol = by_the_rules,
        says_so: bool = True,
        position_first: bool = True,
        in_order: bool = True,
    ) -> None:
        self.programs = programs
        self._protocol, self._says_so, self._in_order = protocol, says_so, in_order
        self._position_first = position_first
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
            written = world.written | {(line, number, rank.own.order)}
            return self._with(world, number, left(rank, Phase.WRITTEN))._replace(written=written)
        which, second = divmod(rank.looks, 2)
        if which < len(self._others[number]):
            return self._with(world, number, self._looked(world, rank, self._others[number][which], bool(second)))
        return self._decision(world, number, rank)

    def _looked(self, world: World, rank: Rank, which: int, second: bool) -> Rank:
        other = world.ranks[which]
        now = PASSED_ALL if other.done == len(self.programs[which]) else other.position
        position, saves = rank.seen[-1] if second else (-1, ())
        seen = (position, other.told) if second == self._position_first else (now, saves)
        return rank._replace(looks=rank.looks + 1, seen=(*rank.seen[: len(rank.seen) - second], seen))

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
        readings = {other: Reading(seen[0], saves=seen[1]) for other, seen in zip(others, rank.seen, strict=True)}
        again = rank._replace(looks=0, seen=())
        found, by = self._protocol(rank.own, number, readings)
        writes = rank.own.phase is Phase.WRITES
        if found.waits:
            back = (
                tell(again, rank.own._replace(phase=Phase.DECIDES))
                if writes and by is not None and by < number
                else again
            )
            return self._with(world, number, back)
        if found is Outcome.DONE:
            self._check_left(world, number, rank.own)
            return self._with(world, number, left(rank, Phase.LEFT))
        if not writes and self._says_so:
            return self._with(world, number, tell(again, rank.own._replace(phase=Phase.WRITES)))
        self._check_alone(world, number, rank.own)
        return self._with(world, number, tell(rank, rank.own._replace(phase=Phase.WRITES))._replace(writes=True))

    def _with(self, world: World, number: int, rank: Rank) -> World:
        return world._replace(ranks=(*world.ranks[:number], rank, *world.ranks[number + 1 :]))

    def _check_left(self, world: World, number: int, own: Save) -> None:
        by_others = [order for path, rank, order in world.written if path == own.path and rank != number]
        assert any(order >= own.order for order in by_others), f"{self.programs}: {number} has not waited for {own}"

    def _check_alone(self, world: World, number: int, own: Save) -> None:
        for other, rank in enumerate(world.ranks):
            busy = rank.writes and rank.own is not None and rank.own.path == own.path
            assert not busy, f"{self.programs}: {other} and {number} write at a time"
        if self._in_order:
            again = any((path, order) == (own.path, own.order) for path, _, order in world.written)
            assert number == 0 or not again, f"{self.programs}: {number} writes {own} again"
        if number and self._in_order:
            assert own.order not in orders(self.programs[0], own.path), f"{self.programs}: rank 0 was to write"


def orders(program: Program, path: int) -> set[tuple[int, int]]:
    """Return (position, number) of each of a program's saves of a path."""
    found, position, number = set(), 0, 0
    for line in program:
        if isinstance(line, str):
            position, number = position + 1, 0
        elif line == path:
            number += 1
            found.add((position, number))
    return found


def some_of(base: Program) -> list[Program]:
    """Return all variants of a program that leave out some of its saves, but no calls."""
    choices = [(True,) if isinstance(line, str) else (True, False) for line in base]
    return [tuple(itertools.compress(base, chosen)) for chosen in itertools.product(*choices)]


A, B, C = 1, 2, 3
BASES: tuple[Program, ...] = (
    (A, CALL, B, A, CALL),
    (A, A, CALL, A),
    (A, B, A),
)


def of_two() -> Iterator[tuple[Program, ...]]:
    for base in BASES:
        yield from itertools.product(some_of(base), repeat=2)


def test_two_ranks_in_every_order() -> None:
    assert sum(Explorer(programs).explore() for programs in of_two()) > 10_000


@pytest.mark.parametrize("base", [(A, CALL), pytest.param(BASES[0][:3], marks=pytest.mark.long("the first"))])
def test_three_ranks_in_every_order(base: Program) -> None:
    assert sum(Explorer(programs).explore() for programs in itertools.product(some_of(base), repeat=3)) > 5_000


def test_paths_of_each_rank() -> None:
    for programs in (((A, CALL), (B, CALL), (C, CALL)), ((A, C, CALL), (B, C, CALL)), ((A,), (B,), (B,))):
        Explorer(programs).explore()


def at_once(own: Save, rank: int, others: dict[int, Reading]) -> tuple[Outcome, int | None]:
    """Decide as if positions had no meaning: ranks that have given up do so."""
    return decide(own._replace(position=PASSED_ALL), rank, others, sorted(others), lambda: True)


def test_one_at_a_time_writes_whatever_the_positions_say() -> None:
    for programs in ((BASES[0][:1],) * 3, *itertools.islice(of_two(), 0, None, 9)):
        Explorer(programs, at_once, in_order=False).explore()


def by_positions_alone(own: Save, rank: int, others: dict[int, Reading]) -> tuple[Outcome, int | None]:
    """Decide without the order of a path's saves: any earlier save of the path counts as this save."""
    for lower in range(rank):
        found = others[lower].of(own.key)
        if found is not None:
            return (Outcome.DONE if found.phase.ended else Outcome.AT_WORK), lower
        if others[lower].position <= own.position:
            return Outcome.OPEN, lower
    return Outcome.AWAY, None


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"position_first": False, "says_so": False}, "again"),
        ({"protocol": at_once}, "was to write"),
        ({"says_so": False}, "write at a time"),
        ({"protocol": by_positions_alone}, "has not waited"),
        ({"protocol": lambda *_: (Outcome.OPEN, 0)}, "wait for each other"),
    ],
)
def test_wrong_protocols_are_found(wrong: dict[str, Any], words: str) -> None:
    said = []
    for programs in (*of_two(), ((CALL,), (A, CALL), (A, CALL))):
        try:
            Explorer(programs, **wrong).explore()
        except AssertionError as error:
            said.append(str(error))
    assert any(words in one for one in said), said[:3]


OWN = Save(A, 5)
IN_THREAD = Save(A, BACKGROUND)


@pytest.mark.parametrize(
    "other, expected",
    [
        (Reading(5), Outcome.OPEN),
        (Reading(6), Outcome.AWAY),
        (Reading(5, over=True), Outcome.AWAY),
        (Reading(5, gone=True), Outcome.AWAY),
        (Reading(PASSED_ALL), Outcome.AWAY),  # the other rank has given up
        (Reading(5, saves=(OWN._replace(phase=Phase.WRITES),)), Outcome.AT_WORK),
        (Reading(5, gone=True, saves=(OWN._replace(phase=Phase.WRITES),)), Outcome.AT_WORK),
        (Reading(5, over=True, saves=(OWN._replace(phase=Phase.WRITES),)), Outcome.AWAY),  # killed in the write
        (Reading(5, over=True, saves=(OWN._replace(phase=Phase.WRITTEN),)), Outcome.DONE),
        # During the write, the other rank has entered a call that waits for this rank, so the write is done. If another
        # thread writes, the write may still run.
        (Reading(6, saves=(OWN._replace(phase=Phase.WRITES),)), Outcome.DONE),
        (Reading(6, saves=(IN_THREAD._replace(phase=Phase.WRITES),)), Outcome.AT_WORK),
        (Reading(5, saves=(OWN._replace(phase=Phase.FAILED),)), Outcome.FAILED),
        # The other rank has saved the path again since then, or is still saving it again.
        (Reading(5, saves=(OWN._replace(number=2, phase=Phase.WRITTEN),)), Outcome.DONE),
        (Reading(5, saves=(OWN._replace(number=2, phase=Phase.FAILED),)), Outcome.DONE),
        (Reading(5, saves=(OWN._replace(number=2, phase=Phase.WRITES),)), Outcome.AT_WORK),
        # The other rank saved the path at an earlier position, alone.
        (Reading(5, saves=(OWN._replace(position=4, phase=Phase.WRITTEN),)), Outcome.OPEN),
        (Reading(6, saves=(OWN._replace(position=4, phase=Phase.WRITTEN),)), Outcome.AWAY),
        (Reading(5, saves=(IN_THREAD._replace(phase=Phase.WRITES),)), Outcome.AT_WORK),
        (Reading(5, saves=(OWN._replace(path=B),)), Outcome.OPEN),
    ],
)
def test_what_another_rank_is_about(other: Reading, expected: Outcome) -> None:
    assert outcome(OWN, other) is expected


def test_other_threads_are_only_counted() -> None:
    written = IN_THREAD._replace(phase=Phase.WRITTEN)
    assert outcome(IN_THREAD, Reading(99)) is Outcome.OPEN
    assert outcome(IN_THREAD, Reading(99, gone=True)) is Outcome.AWAY
    assert outcome(IN_THREAD, Reading(99, saves=(written, OWN))) is Outcome.DONE
    assert outcome(IN_THREAD._replace(number=2), Reading(99, saves=(written,))) is Outcome.OPEN
    assert outcome(OWN, Reading(5, saves=(written,))) is Outcome.OPEN


def test_what_another_machine_has_written_is_looked_for() -> None:
    """Ranks 2 to 4 are on one machine, which may not see what rank 0 has written."""
    decides, writes, written, left = (Reading(5, saves=(OWN._replace(phase=phase),)) for phase in list(Phase)[:4])

    def of_3(others: dict[int, Reading], sees: bool = False) -> tuple[Outcome, int | None]:
        return decide(OWN, 3, others, [2, 4], lambda: sees)

    assert of_3({0: Reading(5), 2: written}) == (Outcome.OPEN, 0)
    assert of_3({0: written, 2: written}, sees=True) == (Outcome.DONE, 0)
    assert of_3({0: written, 2: Reading(5)}) == (Outcome.AWAY, None)
    assert of_3({0: written, 2: decides}) == (Outcome.AT_WORK, 2)
    assert of_3({0: written, 2: Reading(5), 4: decides}) == (Outcome.AWAY, None)
    assert of_3({0: written, 2: Reading(5), 4: writes}) == (Outcome.AT_WORK, 4)
    for reading in (written, left):
        assert of_3({0: written, 2: reading}) == of_3({0: Reading(6), 2: reading}, sees=True) == (Outcome.DONE, 2)


def test_what_is_told_is_read() -> None:
    assert decoded(b"") == ()
    told = [Save(n - 2**61, 2**62 - n, n, Phase(n % 5 + 1), n * 2**55) for n in range(MOST_SAVES)]
    whole = encoded(told)
    assert len(whole) <= SAVES_BYTES and {*decoded(whole)} == {*told}
    failed = [Save(n, n, phase=Phase.FAILED, failure=bytes(_FAILURE_BYTES)) for n in range(5)]
    begun = Save(9, 9, phase=Phase.WRITES)
    whole = encoded([begun, *failed])
    assert len(whole) <= SAVES_BYTES and begun in decoded(whole) and failed[-1] in decoded(whole)


def test_a_position_grows_and_is_the_same_where_it_is_counted_anew() -> None:
    told: list[int] = []
    one, other = Position(told.append), Position(lambda position: None)
    assert one.now == 0 and [one.count(), one.count()] == [1, 2] and one.now == 2
    for position in (one, other):
        position.count_anew()
    assert one.now == other.now > 3
    assert one.count() == other.now + 1
    one.pass_all()
    assert one.now == one.count() == told[-1] == PASSED_ALL
