"""A user's reducer: adding it takes this module and one line, ``extend.use_reducer``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.oracle import v1
from tfdist import extend


class Clipped:
    """Averages gradients, limits each entry, and records the names of the variables."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.seen: list[tuple[str, ...]] = []

    def reduce(self, gradients: Sequence[Any], names: Sequence[str], group: Any) -> list[Any]:
        self.seen.append(tuple(names))
        return [tf.minimum(g, self._limit) for g in extend.average().reduce(gradients, names, group)]


@contextlib.contextmanager
def used(reducer: extend.Reducer) -> Iterator[None]:
    """Use the reducer while the context is open."""
    extend.use_reducer(reducer)
    try:
        yield
    finally:
        extend.use_reducer(None)


def own_and_mean(entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's gradient, and the average with each entry limited to 2."""
    every = [np.arange(entries, dtype=np.float32) * (rank + 1) for rank in range(tfdist.size())]
    return every[tfdist.rank()], np.minimum(np.mean(every, axis=0), 2) if tfdist.size() > 1 else every[0]


def case_a_reducer_in_a_session() -> None:
    own, expected = own_and_mean(5)
    reducer = Clipped(2)
    with used(reducer), tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [5], initializer=v1.zeros_initializer())
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w * own))
        session.run(v1.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(-session.run(w), expected, rtol=1e-6)
    assert reducer.seen == [("w",)] * (tfdist.size() > 1)


def case_a_reducer_in_a_function_and_eagerly() -> None:
    own, expected = own_and_mean(4)
    reducer = Clipped(2)

    def step(w: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * own)
        w.assign_sub(tape.gradient(loss, w))

    with used(reducer):
        for name, run in (("function", tf.function(step)), ("eager", step)):
            w = tf.Variable(np.zeros(4, np.float32))
            run(w)
            np.testing.assert_allclose(-w.numpy(), expected, rtol=1e-6, err_msg=name)
    assert len(reducer.seen) == 2 * (tfdist.size() > 1)
