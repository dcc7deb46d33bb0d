"""The state that a rank writes to shared memory."""

from __future__ import annotations

import time

import numpy as np

from tfdist.transport.calls import Call, Report, line_number
from tfdist.transport.state_line import LINE_BYTES, RankState, StateLine, clipped


def line() -> tuple[np.ndarray, StateLine]:
    memory = np.zeros(LINE_BYTES, np.uint8)
    return memory, StateLine(memory)


def test_what_is_told_is_read() -> None:
    _, rank = line()
    assert rank.read() == RankState("running", calls=Report((), {}, complete=True))
    rank.tell("waiting", "step 1\nof two")
    rank.tell_line("slow (script.py:17)")
    state = rank.read()
    assert state is not None and (state.kind, state.what, state.line) == (
        "waiting",
        "step 1\nof two",
        "slow (script.py:17)",
    )
    assert abs(state.looked - time.monotonic()) < 5


def test_what_is_too_long_is_compared_by_its_beginning() -> None:
    _, rank = line()
    place = "µ" * 2000
    rank.tell("waiting", place)
    rank.tell_line("ä" * 2000)
    state = rank.read()
    assert state is not None and state.what == clipped(place) and 0 < len(state.what) < 2000
    assert 0 < len(state.line) < 2000


def test_what_is_being_written_is_not_read() -> None:
    memory, rank = line()
    rank.tell("alone", "evaluation")
    for changed in (0, 4, 12):
        kept = memory[changed]
        memory[changed] ^= 1
        assert rank.read() is None
        memory[changed] = kept
    assert rank.read() == RankState("alone", "evaluation", calls=Report((), {}, complete=True))


def test_where_a_rank_is_on_each_line() -> None:
    _, rank = line()
    rank.enter(7, 1)
    rank.enter(9, 1)
    rank.enter(7, 2)
    rank.tell_waits([Call(7, 2), Call(9, 1, (0, 3))])
    state = rank.read()
    assert state is not None
    assert state.calls == Report((Call(7, 2), Call(9, 1, (0, 3))), {7: 2, 9: 1}, complete=True)
    rank.tell_waits(None)
    state = rank.read()
    assert state is not None and state.calls.waits is None


def test_lines_that_have_no_room_are_told_of() -> None:
    """Of a line that made room nothing is concluded; of a line that was never entered it still is."""
    _, rank = line()
    lines = [line_number(f"group {number}") for number in range(1000)]
    for number, left in enumerate(lines):
        rank.enter(left, number)
        rank.enter(7, number)
    state = rank.read()
    assert state is not None
    assert state.calls.entered[7] == 999 and state.calls.entered[lines[-1]] == 999
    assert lines[0] not in state.calls.entered
    assert state.calls.has_not_come_to(Call(7, 1000)) and not state.calls.has_not_come_to(Call(7, 999))
    assert not any(state.calls.has_not_come_to(Call(left, number)) for number, left in enumerate(lines))
    never = [Call(line_number(f"other group {number}"), 1) for number in range(1000)]
    assert sum(map(state.calls.has_not_come_to, never)) >= 990
    rank.enter(lines[0], 3)
    state = rank.read()
    assert state is not None and state.calls.has_not_come_to(Call(lines[0], 4))


def test_calls_that_have_no_room_are_unknown() -> None:
    _, rank = line()
    rank.tell_waits([Call(n, n, tuple(range(20))) for n in range(9)])
    state = rank.read()
    assert state is not None and state.calls.waits is None


def test_an_entry_that_is_being_replaced_is_not_read() -> None:
    memory, rank = line()
    rank.enter(7, 1)
    table = memory.view(np.int64)
    table[np.flatnonzero(table == 7)[0]] = 8  # its number is not written yet
    state = rank.read()
    assert state is not None and state.calls.entered == {} and not state.calls.complete
