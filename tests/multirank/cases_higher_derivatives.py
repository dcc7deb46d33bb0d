"""Hessians, and derivatives along a direction: N ranks with batch B / N each equal one process with batch B."""

from __future__ import annotations

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


def along_directions(function: bool) -> Train:
    """Return a program with forward gradients (Baydin et al. 2022, equation 1), whose tanh keeps averages apart."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")

        def step(x: Any, y: Any, direction: Any) -> None:
            with tf.autodiff.ForwardAccumulator(w, direction) as accumulator:
                loss = tf.reduce_mean((x @ w - y) ** 2)
            w.assign_sub(0.3 * tf.tanh(accumulator.jvp(loss)) * direction)

        run = tf.function(step) if function else step
        for number, feed in enumerate(feeds):
            direction = np.random.RandomState(number).randn(5, 3).astype(np.float32)
            run(tf.constant(feed["x"]), tf.constant(feed["y"]), tf.constant(direction))
        return {"w": w.numpy()}

    return train


def case_derivatives_along_a_direction() -> None:
    for function in (True, False):
        with subtest("function" if function else "eager"):
            assert_program_law(along_directions(function))


def case_products_with_the_hessian() -> None:
    """Forward over backward, as TensorFlow's guide recommends; the tape and its gradients are inside."""

    def program(function: bool, by_hand: bool) -> Train:
        def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
            w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")
            optimizer = v1.train.GradientDescentOptimizer(0.3)

            def step(x: Any, y: Any, direction: Any) -> None:
                with tf.autodiff.ForwardAccumulator(w, direction) as accumulator:
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
                    gradient = tape.gradient(loss, w)
                product = tf.tanh(accumulator.jvp(gradient))
                if by_hand:
                    w.assign_sub(0.3 * product)
                else:
                    optimizer.apply_gradients([(product, w)])

            run = tf.function(step) if function else step
            for number, feed in enumerate(feeds):
                direction = np.random.RandomState(number).randn(5, 3).astype(np.float32)
                run(tf.constant(feed["x"]), tf.constant(feed["y"]), tf.constant(direction))
            return {"w": w.numpy()}

        return train

    for function in (True, False):
        for by_hand in (True, False):
            with subtest("function" if function else "eager", "by hand" if by_hand else "by an optimizer"):
                assert_program_law(program(function, by_hand))
