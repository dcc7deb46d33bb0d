"""The learning rate at chosen steps, against values by hand."""

from __future__ import annotations

import pytest
import tensorflow as tf

from nmt.train.schedule import Schedule
from tfdist import schedules


def rates(schedule: Schedule, steps: list[int]) -> list[float]:
    """Evaluate the schedule's graph at these steps."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.placeholder(tf.int32, [])
        rate = schedule.rate(step)
        return [float(session.run(rate, {step: value})) for value in steps]


@pytest.mark.parametrize(
    ("scheme", "steps", "halvings"),
    [
        # S = 8000, T = 1000
        ("luong234", [0, 7999, 8000, 8999, 9000, 11999, 12000], [0, 0, 0, 0, 1, 3, 4]),
        # S = 6000, T = 1200 and 600
        ("luong5", [5999, 7199, 7200, 12000], [0, 0, 1, 5]),
        ("luong10", [5999, 6599, 6600, 12000], [0, 0, 1, 10]),
        ("", [0, 12000, 50000], [0, 0, 0]),
    ],
)
def test_decay(scheme: str, steps: list[int], halvings: list[int]) -> None:
    """Number of halvings in a training of 12,000 steps."""
    schedule = Schedule(0.8, 12000, decay_scheme=scheme)
    assert rates(schedule, steps) == pytest.approx([0.8 * 0.5**n for n in halvings])


def test_decay_of_a_tiny_training() -> None:
    """With fewer steps than halvings, the rate halves once per step and never falls to zero at once."""
    assert rates(Schedule(1.0, 4, decay_scheme="luong10"), [1, 2, 3, 4]) == [1.0, 1.0, 0.5, 0.25]


def test_warmup_t2t() -> None:
    """From a hundredth of the rate, by equal factors."""
    schedule = Schedule(2.0, 100, warmup_steps=4)
    assert rates(schedule, [0, 2, 3, 4, 99]) == pytest.approx([0.02, 0.2, 2 * 0.01**0.25, 2.0, 2.0])


def test_warmup_linear() -> None:
    """From ``warmup_start``, by equal steps."""
    schedule = Schedule(4.0, 100, warmup_steps=4, warmup_scheme="linear", warmup_start=1.0)
    assert rates(schedule, [0, 1, 2, 4, 5]) == pytest.approx([1.0, 1.75, 2.5, 4.0, 4.0])


def test_noam() -> None:
    """Equal steps up to 2 / sqrt(16 * 4), then the inverse root; equal to ``tfdist.schedules.noam``."""
    schedule = Schedule(2.0, 100, warmup_steps=4, decay_scheme="noam", num_units=16)
    steps = [0, 1, 3, 15, 99]
    assert rates(schedule, steps) == pytest.approx([0.0625, 0.125, 0.25, 0.125, 0.05])
    assert schedule.noam_peak == 0.25
    assert rates(schedule, steps) == pytest.approx([schedules.noam(16, 4, 2.0)(step) for step in steps])


def test_inverse_sqrt() -> None:
    """Equal steps from the start to the rate, the first one before the first update; then the inverse root.

    Without a start, the schedule is noam in another unit of the rate.
    """
    schedule = Schedule(2.0, 100, warmup_steps=4, warmup_start=1.0, decay_scheme="inverse_sqrt")
    assert rates(schedule, [0, 1, 3, 15, 99]) == pytest.approx([1.25, 1.5, 2.0, 1.0, 0.4])
    noam = Schedule(2.0, 100, warmup_steps=4, decay_scheme="noam", num_units=16)
    same = Schedule(noam.noam_peak, 100, warmup_steps=4, decay_scheme="inverse_sqrt")
    assert rates(same, [0, 2, 3, 50]) == pytest.approx(rates(noam, [0, 2, 3, 50]))
