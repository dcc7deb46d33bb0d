"""The check of a program tells equal results from different ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.law.check import Arrays, Ended, judge


def program(rank: int, size: int) -> Arrays:
    """A program."""
    return {}


def differs(rank: int, size: int) -> Arrays:
    """A program.

    Differs: each rank draws
    its own numbers.
    """
    return {}


def says(rank: int, size: int) -> Arrays:
    """A program.

    Says: the ranks are apart.
    """
    return {}


def told(rank: int, size: int) -> Arrays:
    """A program.

    Told: the ranks are apart.
    """
    return {}


def refused(rank: int, size: int) -> Arrays:
    """A program.

    Refused: XLA cannot.
    """
    return {}


ONE = {"w": np.array([1.0, 2.0])}
NEAR, OTHER = Ended({"w": ONE["w"] * (1 + 1e-7)}), Ended({"w": np.array([1.0, 2.1])})
SAID = Ended(OTHER.arrays, ["warning: the ranks are apart: mend it"])


@pytest.mark.parametrize(
    ("of", "ranks"),
    [
        (program, (NEAR, NEAR)),
        (differs, (OTHER, OTHER)),
        (says, (NEAR, Ended(NEAR.arrays, SAID.said))),
        (told, (NEAR, SAID)),
        (refused, (Ended({}, error="here XLA cannot do it"),) * 2),
    ],
)
def test_what_is_promised(of: object, ranks: tuple[Ended, ...]) -> None:
    judge(of, ONE, ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "ranks", "why"),
    [
        (program, (NEAR, OTHER), "the ranks are apart: w"),
        (differs, (NEAR, OTHER), "the ranks are apart: w"),
        (program, (OTHER, OTHER), "w differs from one process"),
        (program, (Ended({"v": ONE["w"]}),) * 2, "v w"),
        (program, (Ended({"w": np.array([1.0, np.nan])}),) * 2, "apart"),
        (program, (NEAR, Ended(NEAR.arrays, SAID.said)), "tfdist says of a right program"),
        (differs, (NEAR, NEAR), "each rank draws its own numbers"),
        (told, (NEAR, OTHER), "nobody told it"),
        (told, (SAID, SAID), "the ranks are equal"),
        (refused, (Ended({}, error="XLA cannot"), NEAR), "not refused"),
    ],
)
def test_what_is_not(of: object, ranks: tuple[Ended, ...], why: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(why)):
        judge(of, ONE, ranks)  # type: ignore[arg-type]
