"""When growing norms count as divergence."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tfdist.core.settings import Settings
from tfdist.updates.divergence import DivergenceGuard, Growth
from tfdist.updates.pipeline import Update


def said(norms: list[float]) -> dict[int, str]:
    growth = Growth()
    return {step: words for step, norm in enumerate(norms, 1) if (words := growth.see(norm))}


def test_norms_of_a_training_are_none() -> None:
    random = np.random.RandomState(1)
    assert not said(list(np.exp(random.normal(0, 1, 2000))))
    assert not said(list(np.linspace(0.1, 50, 4000)))  # slow growth


def test_one_bad_window_is_none() -> None:
    assert not said([1.0] * 60 + [100.0] * 40 + [1.0] * 60 + [1e4] * 3 + [1.0] * 60)


def test_norms_that_grow() -> None:
    found = said([1.0] * 60 + [100.0] * 60)
    assert list(found) == [120] and "100, 100, 100" in found[120] and "from 1" in found[120]


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_norms_that_are_not_finite(norm: float) -> None:
    assert list(said([1.0] * 7 + [norm])) == [8]


@pytest.mark.parametrize(("action", "ended", "told"), [("stop", [1, 2, 3, 4, 5], 0), ("warn", [], 3)])
def test_each_update_that_is_not_finite_ends_training_and_some_are_told(
    action: str, ended: list[int], told: int
) -> None:
    """A script that continues after the error gets it again; warnings come at update 1, 2, 4 …"""
    job: Any = SimpleNamespace(
        switches=SimpleNamespace(settings=dataclasses.replace(Settings(), divergence=action), rewrites=True)
    )
    guard, optimizer, found = DivergenceGuard(job), Growth(), []  # (any object will do for the optimizer)
    with mock.patch("tfdist.updates.divergence.announce") as announced:
        for update in range(1, 6):
            try:
                guard.update(Update(optimizer, [(tf.constant([math.nan]), None)], mock.Mock()), mock.Mock())
            except FloatingPointError:
                found.append(update)
    assert found == ended
    assert sum("seems to diverge" in call.args[0] for call in announced.call_args_list) == told
