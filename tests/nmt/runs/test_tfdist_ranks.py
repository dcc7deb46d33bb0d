"""How the cores of a machine are divided among its ranks."""

from __future__ import annotations

import pytest

from nmt.runs.tfdist_ranks import share_of_cores

FOUR = set(range(4))


@pytest.mark.parametrize(
    ("usable", "size", "shares"),
    [
        (FOUR, 1, [FOUR]),
        (FOUR, 2, [{0, 1}, {2, 3}]),
        (FOUR, 4, [{0}, {1}, {2}, {3}]),
        ({1, 3}, 2, [{1, 3}, {1, 3}]),  # cores that were chosen from outside
        (FOUR, 3, [FOUR] * 3),
        (FOUR, 8, [FOUR] * 8),
    ],
)
def test_all_cores_are_dealt_evenly_or_not_at_all(usable: set[int], size: int, shares: list[set[int]]) -> None:
    assert [share_of_cores(usable, FOUR, rank, size) for rank in range(size)] == shares
