"""Loss scales, against the papers' loops on recorded gradients; and their limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tfdist.core.settings import Settings
from tfdist.updates import loss_scale
from tfdist.updates.loss_scale import LossScaleState, counted
from tfdist.updates.loss_scaling import LossScaling


def recorded(seed: int, number: int = 6000) -> list[float]:
    """Return the largest gradient of each update; the sizes drift, and some overflow."""
    random = np.random.RandomState(seed)
    drift = np.cumsum(random.normal(0, 0.03, number))
    largest = np.exp2(-6 + drift + random.normal(0, 0.7, number))
    largest[random.rand(number) < 0.002] = np.inf
    largest[100:104] = np.inf
    return [float(value) for value in largest]


def followed(name: str, largest: Sequence[float], batches: int = 1, tolerance: float = 0.0) -> list[float]:
    """Return the scale after each update."""
    how = loss_scale.of(name, batches, tolerance)
    state, scales = LossScaleState(how.first), []
    for value in largest:
        state = how.next(counted(state, value), value)
        scales.append(state.scale)
    return scales


def backoff(largest: Sequence[float]) -> list[float]:
    scale, good, scales = 2.0**14, 0, []
    for value in largest:
        if np.isinf(value):
            scale, good = max(scale / 2, 1.0), 0
        else:
            good += 1
            if good == 2000:
                scale, good = scale * 2, 0
        scales.append(scale)
    return scales


def window(largest: Sequence[float], batches: int, tolerance: float) -> list[float]:
    """Count as the paper's program does: iterations since the last overflow, and since the last change."""
    scale, scales = 2.0**7, []
    wide = int(2**14 / batches)
    last_overflow, last_change, overflows = -1, -1, 0
    for iteration, value in enumerate(largest):
        if np.isinf(value):
            overflows += 1
            last_overflow = iteration
            if overflows / (iteration - last_change) >= tolerance:
                scale, last_change, overflows = scale / 2, iteration, 0
        elif (iteration - last_overflow) % wide == 0:
            scale, last_change = scale * 2, iteration
        scales.append(scale)
    return scales


def logmax(largest: Sequence[float]) -> list[float]:
    """Compute weighted means with explicit weights."""
    logs = np.log2(np.minimum(largest, 65504.0))
    scales = []
    for n in range(1, len(logs) + 1):
        seen = logs[max(0, n - 20000) : n][::-1]
        fast, slow = 0.99 ** np.arange(len(seen)), 0.999 ** np.arange(len(seen))
        mean, slow_mean = np.average(seen, weights=fast), np.average(seen, weights=slow)
        sigma = math.sqrt(max(0.0, np.average(seen**2, weights=slow) - slow_mean**2))
        scales.append(min(max(2.0 ** (15 - (mean + 3.09 * sigma)), 1.0), 2.0**14))
    return scales


ORACLES: dict[str, Callable[[Sequence[float]], list[float]]] = {"backoff": backoff, "logmax": logmax}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ORACLES)
def test_scales_follow_the_papers(name: str, seed: int) -> None:
    largest = recorded(seed)
    found = followed(name, largest)
    assert len(set(found)) > 3
    np.testing.assert_allclose(found, ORACLES[name](largest), rtol=1e-6)


@pytest.mark.parametrize(("batches", "tolerance"), [(64, 0.0), (12, 0.0), (64, 0.05)])
def test_a_window_follows_the_paper(batches: int, tolerance: float) -> None:
    largest = recorded(3)
    found = followed("window", largest, batches, tolerance)
    assert len(set(found)) > 3
    np.testing.assert_array_equal(found, window(largest, batches, tolerance))


def test_tolerance_matters() -> None:
    largest = recorded(3)
    assert followed("window", largest, 64, 0.05) != followed("window", largest, 64)


def test_limits() -> None:
    assert followed("backoff", [math.inf] * 40)[-1] == 1.0
    assert followed("backoff", [1.0] * 2000 * 12)[-1] == 2.0**24
    assert followed("window", [1.0] * 16384 * 20)[-1] == 2.0**24
    assert followed("logmax", [1e-30] * 10)[-1] == 2.0**14
    assert followed("logmax", [0.0] * 10)[-1] == 2.0**14
    assert followed("logmax", [math.inf] * 10)[-1] == 1.0
    assert set(followed("512", [math.inf, 1.0, math.inf])) == {512.0}


def test_no_scale_is_small_enough() -> None:
    with pytest.raises(FloatingPointError, match="loss scale of 0.00012207 still.*Lower the learning rate"):
        followed("window", [math.inf] * 40)
    followed("window", [math.inf] * 20)


def test_counts() -> None:
    state = LossScaleState(1.0)
    for largest in (1.0, math.inf, 2.0, 3.0):
        state = counted(state, largest)
    assert (state.updates, state.skipped, state.good, state.since, state.overflows) == (4, 1, 2, 4, 1)


def test_a_window_is_of_all_batches_of_an_update() -> None:
    """The batches of all ranks and of all accumulated steps."""
    values = dataclasses.replace(Settings(), loss_scale="window", loss_scale_tolerance=0.05, accumulate_steps=2)
    job = SimpleNamespace(
        world=SimpleNamespace(size=4), switches=SimpleNamespace(settings=values, alone_depth=0, rewrites=True)
    )
    steps: Any = SimpleNamespace(job=job)
    assert LossScaling(steps)._how() == loss_scale.of("window", 8, 0.05)
