"""What a rank that saves reads of the other ranks' states, which do not arrive at the same time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

import pytest

from tfdist.transport import saving
from tfdist.transport.saving import _Observer, waiting_for
from tfdist.transport.state_line import Held, RankState

ENDS, LAST = Held(1, 0, (0, 2)), Held(2, 0, (1, 2))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({0: ENDS, 2: LAST}, {0, 2}),  # rank 0 waits for rank 2, and that for rank 1, which saves
        ({0: ENDS, 2: None}, set()),  # rank 2 may go on
        ({0: ENDS, 2: ENDS}, set()),  # both are there
        ({0: Held(3, 7), 2: None}, {0}),  # a call of all ranks
        ({0: Held(4, 0, (0, 2)), 2: Held(5, 0, (0, 2))}, set()),  # they wait for each other, not for rank 1
    ],
)
def test_who_waits_for_a_rank_that_saves(held: dict[int, Held | None], expected: set[int]) -> None:
    assert waiting_for(1, held) == expected


class States:
    """Rank 0, on this machine, waits for rank 2 on another one; rank 2 waits for rank 1, which saves."""

    rank, size = 1, 3

    def __init__(self) -> None:
        self._reads = itertools.count()
        self._far = RankState(held=LAST, asked=time.monotonic())

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        if next(self._reads) % 5 == 4:
            self._far = RankState(held=LAST, asked=time.monotonic())
        return {0: RankState(held=ENDS, asked=time.monotonic()), 2: self._far}


def test_ranks_that_wait_for_this_one_are_known_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_STUCK_SECONDS", 0.0)
    states = States()
    observer = _Observer(states, 10.0, background=False)  # type: ignore[arg-type]
    for _ in range(16):
        observer.look()
    for _ in range(5):
        observer.look()
        assert [observer.of(rank).gone for rank in (0, 2)] == [True, True]
