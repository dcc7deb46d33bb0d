"""A user's stage: adding it takes this module and one line, ``extend.add_stage``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.inside import job
from tests.multirank.oracle import v1
from tfdist import extend


class Centralised(extend.Stage):
    """Subtracts from each gradient the mean of its entries."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def update(self, update: extend.Update, go_on: extend.GoOn) -> Any:
        self.seen.append(update.optimizer)
        return go_on(update.with_(pairs=[(g - tf.reduce_mean(g), v) for g, v in update.pairs]))


@contextlib.contextmanager
def added(stage: extend.Stage, where: Literal["own", "averages"]) -> Iterator[None]:
    """Add the stage while the context is open."""
    extend.add_stage(stage, where)
    try:
        yield
    finally:
        extend.remove_stage(stage)


def gradient(entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's gradient, and the gradient that is to be applied."""
    every = [np.arange(entries, dtype=np.float32) ** 2 * (rank + 1) for rank in range(tfdist.size())]
    mean = np.mean(every, axis=0)
    return every[tfdist.rank()], mean - mean.mean()


def case_a_stage_behind_the_exchange() -> None:
    own, expected = gradient(5)
    stage = Centralised()
    with added(stage, "averages"):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", [5], initializer=v1.zeros_initializer())
            step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w * own))
            session.run(v1.global_variables_initializer())
            session.run(step)
            np.testing.assert_allclose(-session.run(w), expected, rtol=1e-5, atol=1e-5)
        for compiled in (True, False):
            optimizer, v = keras.optimizers.SGD(1.0), tf.Variable(np.zeros(5, np.float32))

            def train(optimizer: Any = optimizer, v: tf.Variable = v) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(v * own)
                optimizer.apply_gradients([(tape.gradient(loss, v), v)])

            (tf.function(train) if compiled else train)()
            np.testing.assert_allclose(-v.numpy(), expected, rtol=1e-5, atol=1e-5, err_msg=f"function: {compiled}")
    assert len(stage.seen) == 3


def case_a_stage_before_the_exchange() -> None:
    own, _ = gradient(4)

    class Added(extend.Stage):
        def update(self, update: extend.Update, go_on: extend.GoOn) -> Any:
            return go_on(update.with_(pairs=[(g + float(tfdist.rank()), v) for g, v in update.pairs]))

    with added(Added(), "own"), tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [4], initializer=v1.zeros_initializer())
        # As in a script that changes the gradients: they are averaged when they are applied.
        step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.constant(own), w)])
        session.run(v1.global_variables_initializer())
        session.run(step)
        every = [np.arange(4, dtype=np.float32) ** 2 * (rank + 1) + rank for rank in range(tfdist.size())]
        np.testing.assert_allclose(-session.run(w), np.mean(every, axis=0), rtol=1e-5)


def case_where_there_is_no_place() -> None:
    with pytest.raises(ValueError, match="it is 'own' or 'averages'"):
        extend.add_stage(extend.Stage(), "last")  # type: ignore[arg-type]


def case_beside_horovods_names_it_is_refused() -> None:
    switches = job().switches
    switches.automatic = False
    try:
        with pytest.raises(RuntimeError, match="tfdist.horovod, and the stage Stage: .* leave the stage out"):
            extend.add_stage(extend.Stage())
    finally:
        switches.automatic = True
