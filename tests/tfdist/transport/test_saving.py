"""What a rank that saves reads of the other ranks' states, which do not arrive at the same time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

from tfdist.transport.calls import Call, Report
from tfdist.transport.saves import PASSED_ALL
from tfdist.transport.saving import _Observer
from tfdist.transport.state_line import RankState

ENDS, LAST = Call(1, 1, (0, 2)), Call(2, 1, (1, 2))


class States:
    """Rank 0, on this machine, waits for rank 2 on another one; rank 2 waits for rank 1, which saves."""

    rank, size = 1, 3

    def __init__(self) -> None:
        self._reads = itertools.count()
        self._far = self._told(LAST, {2: 1})

    def _told(self, call: Call, entered: dict[int, int]) -> RankState:
        return RankState(calls=Report((call,), entered, complete=True), asked=time.monotonic())

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        if next(self._reads) % 5 == 4:
            self._far = self._told(LAST, {2: 1})
        return {0: self._told(ENDS, {1: 1}), 2: self._far}


def test_ranks_that_wait_for_this_one_are_known_from_then_on() -> None:
    states = States()
    observer = _Observer(states, 10.0, None, lambda: Report(None, {}, complete=True))  # type: ignore[arg-type]
    for _ in range(16):
        observer.look()
    for _ in range(5):
        observer.look()
        assert [observer.of(rank).position for rank in (0, 2)] == [PASSED_ALL, PASSED_ALL]
