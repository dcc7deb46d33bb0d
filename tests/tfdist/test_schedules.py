"""Every schedule against its formula in NumPy: as numbers, in a session's graph, and in Keras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import schedules
from tfdist.schedules import Schedule

v1 = tf.compat.v1
STEPS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 99, 100, 101, 4000, 123_456])
PI = 3.141592653589793

Oracle = Callable[[int], float]
of_keras = keras.optimizers.schedules


def alike(rate: Any) -> Schedule:
    """Return a schedule of Keras as ours, with the same rates."""
    return schedules.scaled(rate, ranks=1)


TABLE: dict[str, tuple[Schedule, Oracle]] = {
    "fixed": (alike(0.25), lambda t: 0.25),
    "piecewise": (
        alike(of_keras.PiecewiseConstantDecay([3, 10], [1.0, 0.5, 0.125])),
        lambda t: 1.0 if t <= 3 else 0.5 if t <= 10 else 0.125,
    ),
    "exponential": (alike(of_keras.ExponentialDecay(0.5, 10, 0.96)), lambda t: 0.5 * 0.96 ** (t / 10)),
    "staircase": (alike(of_keras.ExponentialDecay(0.5, 3, 0.5, staircase=True)), lambda t: 0.5 * 0.5 ** (t // 3)),
    "polynomial": (
        alike(of_keras.PolynomialDecay(0.5, 10, end_learning_rate=0.1, power=2.0)),
        lambda t: 0.1 + 0.4 * (1 - t / 10) ** 2 if t < 10 else 0.1,
    ),
    # (0.4 / 0.1) ** (1 / 0.5) - 1 = 15
    "inverse polynomial": (
        schedules.inverse_polynomial(0.4, 100, end_learning_rate=0.1, power=0.5),
        lambda t: 0.4 / np.sqrt(1 + 15 * min(t, 100) / 100),
    ),
    "cosine": (
        alike(of_keras.CosineDecay(0.5, 100, alpha=0.2)),
        lambda t: 0.1 + 0.2 * (1 + np.cos(PI * t / 100)) if t < 100 else 0.1,
    ),
    "noam": (
        schedules.noam(512, 4000),
        lambda t: 1 / np.sqrt(512) * ((t + 1) / 4000**1.5 if t + 1 < 4000 else 1 / np.sqrt(t + 1)),
    ),
    "noam, factor": (schedules.noam(64, 5, 2.0), lambda t: 2 / 8 * min(1 / np.sqrt(t + 1), (t + 1) / 5 / np.sqrt(5))),
    "inverse square root": (
        schedules.inverse_sqrt(0.4, 10, start=0.1),
        lambda t: 0.1 + 0.3 * (t + 1) / 10 if t + 1 < 10 else 0.4 * np.sqrt(10 / (t + 1)),
    ),
    "warm-up": (schedules.warmup(0.4, 10, start=0.25), lambda t: 0.1 + 0.3 * min(t, 10) / 10),
    "warm-up by equal factors": (
        schedules.warmup(alike(0.4), 10, 0.01, "exponential"),
        lambda t: 0.4 * 0.01 ** (1 - min(t, 10) / 10),
    ),
    "linear": (schedules.scaled(0.1, "linear", 10, ranks=4), lambda t: 0.1 + 0.3 * min(t, 10) / 10),
    "sqrt": (schedules.scaled(0.1, "sqrt", 5, ranks=9), lambda t: 0.1 + 0.2 * min(t, 5) / 5),
    "no warm-up": (schedules.scaled(0.1, "sqrt", ranks=16), lambda t: 0.4),
    "scaled decay": (
        schedules.scaled(of_keras.ExponentialDecay(0.5, 1, 0.5, staircase=True), "linear", 10, ranks=3),
        lambda t: 0.5**t * 0.5 * (1 + 2 * min(t, 10) / 10),
    ),
    "scaled decay of Keras": (
        schedules.scaled(of_keras.InverseTimeDecay(0.5, 10, 2.0), "linear", 10, ranks=2),
        lambda t: 0.5 / (1 + t / 5) * (1 + min(t, 10) / 10),
    ),
}
every = pytest.mark.parametrize("name", TABLE)


def expected(name: str) -> Any:
    """Return the table's rates within the rounding of float32, in which Keras's schedules compute."""
    return pytest.approx([TABLE[name][1](int(t)) for t in STEPS], rel=1e-5, abs=1e-37)


@every
def test_numbers(name: str) -> None:
    schedule = TABLE[name][0]
    rates = [schedule(int(t)) for t in STEPS]
    assert all(type(rate) is float for rate in rates)
    assert rates == expected(name)
    assert schedule(STEPS).tolist() == pytest.approx(rates, rel=1e-6)


@every
@pytest.mark.parametrize("dtype", (tf.int32, tf.int64))
def test_a_session(name: str, dtype: tf.DType) -> None:
    """The rate follows the global step."""
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.get_variable(
            "step", [], dtype, v1.zeros_initializer(), trainable=False, collections=[v1.GraphKeys.GLOBAL_STEP]
        )
        rate = TABLE[name][0](v1.train.get_global_step())
        assert (rate.dtype, rate.shape.rank) == (tf.float32, 0)
        given = v1.placeholder(dtype, [])
        load = v1.assign(step, given)
        found = []
        for t in STEPS:
            session.run(load, {given: t})
            found.append(float(session.run(rate)))
    assert found == expected(name)


@every
def test_an_optimizer_of_keras(name: str) -> None:
    optimizer = keras.optimizers.SGD(TABLE[name][0])
    optimizer.build([keras.Variable(1.0)])
    found = []
    for t in STEPS:
        optimizer.iterations.assign(int(t))
        found.append(float(optimizer.learning_rate))
    assert found == expected(name)
    again = keras.optimizers.get(keras.optimizers.serialize(optimizer))
    assert [float(again._learning_rate(tf.constant(t))) for t in STEPS] == found


@every
def test_a_saved_model(name: str, tmp_path: Path) -> None:
    """A model is trained for two steps; after loading, its schedule continues."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(TABLE[name][0]), "mse")
    model.fit(np.ones([2, 1]), np.ones([2, 1]), batch_size=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer._learning_rate, Schedule)
    assert int(loaded.optimizer.iterations) == 2
    assert float(loaded.optimizer.learning_rate) == pytest.approx(TABLE[name][1](2), rel=2e-6)
    assert loaded.optimizer._learning_rate(STEPS).tolist() == TABLE[name][0](STEPS).tolist()


def test_steps_of_a_training_take_the_rates_in_turn() -> None:
    """SGD with a gradient of 1: the weight falls by the sum of the rates."""
    schedule = schedules.noam(4, 3)
    expected = [-sum(schedule(k) for k in range(t + 1)) for t in range(5)]
    found = []
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", [], initializer=v1.zeros_initializer())
        train = v1.train.GradientDescentOptimizer(schedule(step)).minimize(weight, step)
        session.run(v1.global_variables_initializer())
        for _ in range(5):
            session.run(train)
            found.append(float(session.run(weight)))
    assert found == pytest.approx(expected, rel=1e-6)
    weight, optimizer, found = keras.Variable(0.0), keras.optimizers.SGD(schedule), []
    for _ in range(5):
        optimizer.apply([tf.constant(1.0)], [weight])
        found.append(float(weight))
    assert found == pytest.approx(expected, rel=1e-6)


def test_far_steps_are_told_apart() -> None:
    """Float32 has no odd numbers above 2 ** 24."""
    schedule = schedules.warmup(1.0, 2**26)
    assert [schedule.formula(tf.constant(2.0**25 + k, tf.float64), tf).numpy() * 2**26 % 2 for k in (0, 1)] == [0, 1]


def test_ranks_are_those_of_the_job() -> None:
    assert schedules.scaled(0.1)(0) == 0.1
    assert repr(schedules.scaled(0.1)) == "scaled(learning_rate=0.1, rule='linear', warmup_steps=0, ranks=1)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.inverse_sqrt(-0.1, 10), "learning_rate=-0.1; it is at least 0"),
        (lambda: schedules.inverse_sqrt(float("nan"), 10), "learning_rate=nan"),
        (lambda: schedules.inverse_polynomial(0.1, 10, 0.0), "end_learning_rate=0.0; it is more than 0"),
        (lambda: schedules.noam(0, 4000), "model_size=0"),
        (lambda: schedules.noam(512, 0), "warmup_steps=0"),
        (lambda: schedules.scaled(0.1, "cubic"), "rule='cubic'"),  # type: ignore[arg-type]
        (lambda: schedules.scaled(0.1, warmup_steps=-1), "warmup_steps=-1"),
        (lambda: schedules.scaled(0.1, ranks=0), "ranks=0; it is at least 1"),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_they_are_there_after_the_import_of_the_package_and_imported_when_used() -> None:
    program = (
        "import sys, tfdist; assert 'tfdist.schedules' not in sys.modules; "
        "print(tfdist.schedules.scaled(0.5)(3)); assert not hasattr(tfdist, 'schedule')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0.5\n", done.stderr[-2000:]
