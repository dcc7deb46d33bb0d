"""The guard against divergence: all ranks stop in the same step, or log a line and continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tests.multirank.inside import captured_log, settings
from tests.multirank.oracle import v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()
STEPS = 200


def slopes(bad_step: int, value: float) -> Callable[[int], float]:
    """Return the gradient as a function of the step: ``value`` on the last rank from ``bad_step`` on, else 1."""
    return lambda step: value if step >= bad_step and RANK == SIZE - 1 else 1.0


def in_a_session(slope: Callable[[int], float]) -> int:
    with tf.Graph().as_default(), v1.Session() as session:
        w, x = v1.get_variable("w", [3]), v1.placeholder(tf.float32, [])
        optimizer = v1.train.GradientDescentOptimizer(0.0)
        gradients, variables = zip(*optimizer.compute_gradients(tf.reduce_sum(w * x)), strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)  # the clipped values do not matter
        update = optimizer.apply_gradients(zip(gradients, variables, strict=True))
        session.run(v1.global_variables_initializer())
        for step in range(STEPS):
            try:
                session.run(update, {x: slope(step)})
            except Exception as error:
                assert "training has diverged" in str(error), error
                return step
    return STEPS


def in_a_function(slope: Callable[[int], float]) -> int:
    w, optimizer = tf.Variable([1.0, 2.0, 3.0]), keras.optimizers.SGD(0.0)

    @tf.function
    def update(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x)
        optimizer.apply([tf.clip_by_norm(tape.gradient(loss, w), 1.0)], [w])

    return until_it_stops(update, slope)


def eagerly(slope: Callable[[int], float]) -> int:
    w, optimizer = tf.Variable([1.0, 2.0, 3.0]), keras.optimizers.SGD(0.0)

    def update(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x)
        optimizer.apply([tape.gradient(loss, w)], [w])

    return until_it_stops(update, slope)


def until_it_stops(update: Any, slope: Callable[[int], float]) -> int:
    for step in range(STEPS):
        try:
            update(tf.constant(slope(step), tf.float32))
        except Exception as error:
            if "training has diverged" not in str(error):
                raise
            return step
    return STEPS


def case_a_training_that_diverges_stops_together() -> None:
    for run in (in_a_session, in_a_function, eagerly):
        with settings():
            tfdist.configure(divergence="stop")
            with subtest(run):
                assert run(slopes(STEPS, 1.0)) == STEPS
                assert run(slopes(30, float("nan"))) == 30
                assert run(slopes(45, float("inf"))) == 45
                assert run(slopes(40, 1e3 * SIZE)) == 99  # the third bad window of 20 steps in a row


def case_a_norm_that_grows_is_told_of() -> None:
    with settings():
        tfdist.configure(divergence="warn")
        with captured_log() as lines:
            assert in_a_function(slopes(40, 1e3 * SIZE)) == STEPS
    told = [line for line in lines if "seems to diverge" in line]
    assert len(told) == 2 * (RANK == 0), lines
    assert all("learning rate" in line for line in told)
