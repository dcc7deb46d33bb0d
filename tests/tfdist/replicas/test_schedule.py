"""The steps after which ranks compare their variables."""

from __future__ import annotations

import pytest

from tfdist.replicas.check import following


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("auto", [1, 2, 4, 8, 16, 32, 64, 100, 200, 300]),
        ("7", [7, 14, 21, 28, 35, 42, 49, 56, 63, 70]),
        ("1", [*range(1, 11)]),
    ],
)
def test_which(setting: str, expected: list[int]) -> None:
    found = [0]
    for _ in expected:
        found.append(following(setting, found[-1]))
    assert found[1:] == expected


def test_a_comparison_that_came_late_changes_no_later_one() -> None:
    """As after a call of many steps."""
    assert [following("auto", done) for done in (3, 63, 65, 199)] == [4, 64, 100, 200]
