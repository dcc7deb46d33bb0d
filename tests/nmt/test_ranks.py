"""Agreement between ranks, with ranks that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from nmt.errors import InputError
from nmt.train.ranks import AgreedError, OneProcess, Ranks, check_equal, from_root, together


class Thread:
    """A rank that meets the others at a barrier."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, slots: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._slots = rank, size, barrier, slots

    def _gather(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(10)
        values = list(self._slots)
        self._barrier.wait(10)
        return values

    def sum(self, value: np.ndarray) -> np.ndarray:
        return np.sum(self._gather(value), axis=0)

    def broadcast(self, value: Any) -> Any:
        return self._gather(value)[0]

    def alone(self, reason: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def barrier(self) -> None:
        self._gather(None)


def outcomes(size: int, body: Callable[[Ranks], Any]) -> list[Any]:
    """What the body returns or raises on each rank."""
    barrier, slots = threading.Barrier(size), [None] * size

    def run(rank: int) -> Any:
        try:
            return body(Thread(rank, size, barrier, slots))
        except AgreedError as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_from_root_calls_rank_0_only() -> None:
    called = []

    def body(ranks: Ranks) -> int:
        def make() -> int:
            called.append(ranks.rank)
            return 7

        return from_root(ranks, make)

    assert outcomes(3, body) == [7, 7, 7]
    assert called == [0]


@pytest.mark.parametrize("failing", [{0}, {2}, {1, 2}])
def test_one_rank_tells_and_all_fail(failing: set[int]) -> None:
    def body(ranks: Ranks) -> None:
        with together(ranks):
            if ranks.rank in failing:
                raise InputError(f"broken on {ranks.rank}")

    errors = outcomes(3, body)
    assert all(isinstance(error, AgreedError) for error in errors)
    tellers = [rank for rank, error in enumerate(errors) if error.is_mine]
    assert tellers == [min(failing)]
    assert str(errors[tellers[0]]) == f"broken on {tellers[0]}"


def test_a_mistake_of_rank_0_reaches_all() -> None:
    def make() -> None:
        raise InputError("no")

    assert [error.is_mine for error in outcomes(2, lambda ranks: from_root(ranks, make))] == [True, False]


def test_check_equal_names_the_rank() -> None:
    errors = outcomes(3, lambda ranks: check_equal(ranks, int(ranks.rank == 2), "text differs"))
    assert [error.is_mine for error in errors] == [False, False, True]
    assert str(errors[2]) == "text differs: rank 2 differs from rank 0"
    assert outcomes(2, lambda ranks: check_equal(ranks, 5, "")) == [None, None]


def test_one_process_is_trivial() -> None:
    ranks = OneProcess()
    value = np.arange(3)
    assert ranks.sum(value) is value
    assert ranks.broadcast("x") == "x"
    with ranks.alone("reason"):
        ranks.barrier()
    with pytest.raises(AgreedError) as error, together(ranks):
        raise InputError("mine")
    assert error.value.is_mine
