"""Sonnet: its layers and optimizers, which assign to variables themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

from tests.ecosystem.programs import assert_law, values
from tests.multirank.oracle import Feed
from tests.named import subtest


class Regression(snt.Module):  # type: ignore[misc]
    """A layer plus an embedding of the category; the first call makes the variables."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = snt.nets.MLP([4, 3], activation=tf.tanh), snt.Embed(7, 3)

    def __call__(self, feed: Feed) -> Any:
        return tf.reduce_mean((self.layer(feed["x"]) + self.rows(feed["i"]) - feed["y"]) ** 2)


def train(feeds: list[Feed], make: Callable[[], Any], function: bool) -> dict[str, np.ndarray]:
    """Train with Sonnet's loop: a tape, and ``optimizer.apply``."""
    model, optimizer = Regression(), make()

    def step(feed: Feed) -> None:
        with tf.GradientTape() as tape:
            loss = model(feed)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    run = tf.function(step) if function else step
    for feed in feeds:
        run({n: tf.constant(v) for n, v in feed.items()})
    return values([*model.variables, *(getattr(optimizer, "m", None) or [])])


def case_optimizers() -> None:
    for name, make in {
        "adam": lambda: snt.optimizers.Adam(0.05, epsilon=1e-3),
        "momentum": lambda: snt.optimizers.Momentum(0.1, 0.9, use_nesterov=True),
        "rmsprop": lambda: snt.optimizers.RMSProp(0.05, momentum=0.5, epsilon=1e-3),
        "sgd": lambda: snt.optimizers.SGD(0.1),
    }.items():
        for function in (True, False):
            with subtest(name, "in a function" if function else "eagerly"):
                assert_law(functools.partial(train, make=make, function=function))
