"""What a rank says of itself in shared memory."""

from __future__ import annotations

import time

import numpy as np

from tfdist.transport.state_line import LINE_BYTES, State, StateLine, clipped


def line() -> tuple[np.ndarray, StateLine]:
    memory = np.zeros(LINE_BYTES, np.uint8)
    return memory, StateLine(memory)


def test_what_is_told_is_read() -> None:
    _, rank = line()
    assert rank.read() == State("running")
    rank.tell("waiting", "step 1\nof two")
    rank.tell_line("slow (script.py:17)")
    state = rank.read()
    assert state is not None and (state.kind, state.what, state.line) == (
        "waiting",
        "step 1\nof two",
        "slow (script.py:17)",
    )
    assert abs(state.looked - time.time()) < 5


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
    assert rank.read() == State("alone", "evaluation")
