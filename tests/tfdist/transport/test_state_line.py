"""The state that a rank writes to shared memory."""

from __future__ import annotations

import time

import numpy as np

from tfdist.transport.state_line import STATE_BYTES, Held, RankState, StateLine, clipped


def line() -> tuple[np.ndarray, StateLine]:
    memory = np.zeros(STATE_BYTES, np.uint8)
    return memory, StateLine(memory)


def test_what_is_told_is_read() -> None:
    _, rank = line()
    assert rank.read() == RankState("running")
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
    assert rank.read() == RankState("alone", "evaluation")


def test_the_call_that_holds_a_rank_up() -> None:
    _, rank = line()
    rank.tell_position(7)
    for held in (Held(11, 7), Held(2**61, 0, (0, 3)), None):
        rank.tell_held(held)
        state = rank.read()
        assert state is not None and (state.held, state.position) == (held, 7)
    rank.tell_held(Held(11, 0, tuple(range(900))))  # there is no room for so many ranks
    state = rank.read()
    assert state is not None and state.held is None


def test_calls_that_no_program_makes_both() -> None:
    assert Held(1, 7).contradicts(Held(2, 7)) and not Held(1, 7).contradicts(Held(1, 7))
    assert not Held(1, 7).contradicts(Held(2, 8)) and not Held(1, 7).contradicts(None)
    assert not Held(1, 0, (0, 1)).contradicts(Held(2, 0, (0, 2)))
