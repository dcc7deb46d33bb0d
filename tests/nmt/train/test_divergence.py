"""When a rising loss counts as divergence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nmt.core.ranks import OneProcess
from nmt.train.divergence import DivergedError, LossGuard, RateTooHighError, Rise
from nmt.train.step import StepResult


def seen(losses: list[float], first_step: int = 0) -> tuple[list[str], Rise]:
    rise = Rise(first_step)
    return [rise.see(first_step + 20 * (number + 1), loss) for number, loss in enumerate(losses)], rise


def test_a_loss_that_falls_with_noise_is_none() -> None:
    random = np.random.RandomState(1)
    losses = [2 + 7 * math.exp(-step / 30) + random.normal(0, 0.1) for step in range(300)]
    assert not any(seen(losses)[0])
    assert not any(seen([value - 5 for value in losses])[0])  # also if it is negative


def test_a_loss_that_stays_is_none() -> None:
    assert not any(seen([6.0] * 50)[0])


def test_one_bad_window_is_none() -> None:
    assert not any(seen([9, 8, 7, 6, 5, 8, 8, 5, 5, 8, 8, 5])[0])


def test_a_loss_that_rises() -> None:
    said, rise = seen([9, 8, 7, 6, 5, 5.5, 6.1, 7, 8], first_step=100)
    assert [bool(words) for words in said] == [False] * 8 + [True]
    assert "6.1, 7, 8" in said[-1] and "lowest: 5, first: 9" in said[-1]
    assert rise.good_step == 100 + 20 * 6


def test_a_loss_that_never_fell() -> None:
    said, rise = seen([9, 12, 14, 13])
    assert said[-1] and not any(said[:-1]) and rise.good_step == 20


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite(loss: float) -> None:
    said, rise = seen([9, 8, loss])
    assert said[-1] and rise.good_step == 40


class Two(OneProcess):
    """Two ranks: the other one has twice the loss for as many words."""

    size = 2

    def sum(self, value: np.ndarray) -> np.ndarray:
        return value + value * [2, 1, 1, 1]


def results(losses: list[float]) -> list[StepResult]:
    return [StepResult(10 * loss, 10, 8, 2.0, 1.5, 0.5, step + 1) for step, loss in enumerate(losses)]


def test_ranks_look_at_their_mean_together() -> None:
    guard = LossGuard(Two(), 0)
    with pytest.raises(
        DivergedError, match=r"12, 12, 12 in the windows .*lowest: 3, .*gradient norm 2, .*rate 0.5"
    ) as error:
        for result in results([6.0] + [2.0] * 40 + [8.0] * 60):
            guard.see(result)
    assert (list(error.value.back_to), error.value.halvings, error.value.trial) == ([0, 41], 1, 101)


def test_a_warning_lets_training_go_on() -> None:
    said: list[str] = []
    guard = LossGuard(OneProcess(), 0, said.append)
    for result in results([6.0] + [2.0] * 40 + [8.0] * 120):
        guard.see(result)
    assert len(said) == 2 and all("seems to diverge" in line and "--learning_rate" in line for line in said)


@pytest.mark.parametrize(
    ("step", "back_to", "trial"), [(45, [0, 40], 100), (500, [0, 40], 500), (501, [40], None), (10_000, [40], None)]
)
def test_a_rate_that_never_worked_is_on_trial(step: int, back_to: list[int], trial: int | None) -> None:
    error = DivergedError("it rises", True, 40, step)
    assert (list(error.back_to), error.halvings, error.trial) == (back_to, 1, trial)


@pytest.mark.parametrize(("trial", "first_step", "end"), [(100, 0, 101), (45, 0, 61), (100, 50, 111), (100, 101, 102)])
def test_a_trial_ends_with_a_quarter_of_the_rate(trial: int, first_step: int, end: int) -> None:
    """Also if the run was stopped during the trial, or right after it."""
    guard = LossGuard(OneProcess(), first_step, trial=trial)
    with pytest.raises(
        RateTooHighError, match=f"with learning rate 0.5 training does not .* up to step {end},"
    ) as error:
        for number, result in enumerate(results([6.0] * 200)):
            guard.see(result._replace(global_step=first_step + number + 1))
    assert not isinstance(error.value, DivergedError)
    assert (list(error.value.back_to), error.value.halvings, error.value.trial) == ([0, end], 2, None)


def test_a_trial_that_diverges_is_followed_by_another() -> None:
    guard = LossGuard(OneProcess(), 0, trial=100)
    with pytest.raises(DivergedError) as error:
        for result in results([6.0] * 50 + [12.0] * 150):
            guard.see(result)
    assert list(error.value.back_to) == [0, 41] and error.value.trial == 101
