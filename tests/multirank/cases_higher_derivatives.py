"""Hessians, and derivatives along a direction: N ranks with batch B / N each equal one process with batch B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.multirank.cases_programs import Train, assert_program_law
from tests.multirank.oracle import Feed, assert_law, data, placeholders, v1
from tests.named import subtest


def case_hessians_in_a_session() -> None:
    """A damped step of Newton's method, which is not linear in the Hessian."""

    def build() -> Any:
        inputs = placeholders()
        w = v1.get_variable("w", [5, 1])
        loss = tf.reduce_mean((tf.tanh(inputs["x"] @ w) - inputs["y"][:, :1]) ** 2)
        gradient, hessian = tf.gradients(loss, w)[0], tf.reshape(tf.hessians(loss, w)[0], [5, 5])
        direction = tf.linalg.solve(hessian @ hessian + tf.eye(5), gradient)
        return v1.train.GradientDescentOptimizer(0.5).apply_gradients([(direction, w)])

    assert_law(build, feeds=data(steps=5))


Step = Callable[[tf.Variable, Any, Any, Any], None]


def along_directions(step: Step, function: bool) -> Train:
    """Return a program that calls ``step(w, x, y, direction)`` with another direction in each step."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")
        run = tf.function(step) if function else step
        for number, feed in enumerate(feeds):
            direction = np.random.RandomState(number).randn(5, 3).astype(np.float32)
            run(w, tf.constant(feed["x"]), tf.constant(feed["y"]), tf.constant(direction))
        return {"w": w.numpy()}

    return train


def case_derivatives_along_a_direction() -> None:
    """Forward gradients (Baydin et al. 2022, equation 1); tanh shows whether the average comes before it."""

    def step(w: tf.Variable, x: Any, y: Any, direction: Any) -> None:
        with tf.autodiff.ForwardAccumulator(w, direction) as accumulator:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(0.3 * tf.tanh(accumulator.jvp(loss)) * direction)

    for function in (True, False):
        with subtest("function" if function else "eager"):
            assert_program_law(along_directions(step, function))


def case_products_with_the_hessian() -> None:
    """Forward over backward, as TensorFlow's guide recommends; the tape and its gradients are inside."""

    def product(w: tf.Variable, x: Any, y: Any, direction: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(w, direction) as accumulator:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
            gradient = tape.gradient(loss, w)
        return tf.tanh(accumulator.jvp(gradient))

    def by_hand(w: tf.Variable, *given: Any) -> None:
        w.assign_sub(0.3 * product(w, *given))

    def by_an_optimizer(w: tf.Variable, *given: Any) -> None:
        v1.train.GradientDescentOptimizer(0.3).apply_gradients([(product(w, *given), w)])

    for function in (True, False):
        for step in (by_hand, by_an_optimizer):
            with subtest("function" if function else "eager", step):
                assert_program_law(along_directions(step, function))
