"""Agreement between ranks, with threads as ranks."""

from __future__ import annotations

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.core.ranks import CollectiveError, OneProcess, Ranks, call_on_root, check_equal, together
from tests.nmt.core.thread_ranks import outcomes


def test_from_root_calls_rank_0_only() -> None:
    called = []

    def body(ranks: Ranks) -> int:
        def make() -> int:
            called.append(ranks.rank)
            return 7

        return call_on_root(ranks, make)

    assert outcomes(3, body) == [7, 7, 7]
    assert called == [0]


@pytest.mark.parametrize("failing", [{0}, {2}, {1, 2}])
def test_one_rank_tells_and_all_fail(failing: set[int]) -> None:
    def body(ranks: Ranks) -> None:
        with together(ranks):
            if ranks.rank in failing:
                raise InputError(f"broken on {ranks.rank}")

    errors = outcomes(3, body)
    assert all(isinstance(error, CollectiveError) for error in errors)
    tellers = [rank for rank, error in enumerate(errors) if error.is_mine]
    assert tellers == [min(failing)]
    assert str(errors[tellers[0]]) == f"broken on {tellers[0]}"


def test_a_mistake_of_rank_0_reaches_all() -> None:
    def make() -> None:
        raise InputError("no")

    assert [error.is_mine for error in outcomes(2, lambda ranks: call_on_root(ranks, make))] == [True, False]


def test_check_equal_names_the_rank() -> None:
    errors = outcomes(3, lambda ranks: check_equal(ranks, int(ranks.rank == 2), "text differs"))
    assert [error.is_mine for error in errors] == [False, False, True]
    assert str(errors[2]) == "text differs: rank 2 differs from rank 0"
    assert outcomes(2, lambda ranks: check_equal(ranks, 5, "")) == [None, None]


def test_gathered_values_are_in_the_order_of_ranks() -> None:
    assert outcomes(3, lambda ranks: ranks.gather("x" * ranks.rank)) == [["", "x", "xx"]] * 3


def test_one_process_is_trivial() -> None:
    ranks = OneProcess()
    assert ranks.gather("x") == ["x"]
    value = np.arange(3)
    assert ranks.sum(value) is value
    assert ranks.broadcast("x") == "x"
    with ranks.alone("reason"):
        ranks.barrier()
    with pytest.raises(CollectiveError) as error, together(ranks):
        raise InputError("mine")
    assert error.value.is_mine
