"""When norms that grow are taken for divergence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tfdist.updates.divergence import Growth


def said(norms: list[float]) -> dict[int, str]:
    growth = Growth()
    return {step: words for step, norm in enumerate(norms, 1) if (words := growth.see(norm))}


def test_norms_of_a_training_are_none() -> None:
    random = np.random.RandomState(1)
    assert not said(list(np.exp(random.normal(0, 1, 2000))))
    assert not said(list(np.linspace(0.1, 50, 4000)))  # that grow slowly


def test_one_bad_window_is_none() -> None:
    assert not said([1.0] * 60 + [100.0] * 40 + [1.0] * 60 + [1e4] * 3 + [1.0] * 60)


def test_norms_that_grow() -> None:
    found = said([1.0] * 60 + [100.0] * 60)
    assert list(found) == [120] and "100, 100, 100" in found[120] and "from 1" in found[120]


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_norms_that_are_not_finite(norm: float) -> None:
    assert list(said([1.0] * 7 + [norm])) == [8]
