"""Losses divided by the ranks' total count: uneven numbers of tokens, against one process with all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.inside import everywhere
from tests.multirank.oracle import assert_close, one_process, v1
from tests.named import subtest

Loss = Callable[[Any, Any], Any]
ROWS, STEPS = 6, 3


def batches(rank: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return a rank's batches: x [rows, 5], and a mask, bool [rows]; rank 0 counts least, and 0 in the last step."""
    random = np.random.RandomState(rank)
    lengths = [1 + 2 * rank, 2 + rank, rank]
    return [(random.randn(ROWS, 5).astype("float32"), np.arange(ROWS) < n) for n in lengths]


def whole() -> list[tuple[np.ndarray, np.ndarray]]:
    ranks = [batches(rank) for rank in range(tfdist.size())]
    return [tuple(np.concatenate(parts) for parts in zip(*step, strict=True)) for step in zip(*ranks, strict=True)]  # type: ignore


def start() -> np.ndarray:
    return np.linspace(-1, 1, 5).astype("float32")


def divided(x: Any, mask: Any, w: Any, divide: Loss) -> Any:
    losses = tf.square(tf.tanh(tf.linalg.matvec(x, tf.convert_to_tensor(w))) - 0.5)
    count = tf.reduce_sum(tf.cast(mask, tf.int32))
    return divide(tf.reduce_sum(losses * tf.cast(mask, tf.float32)), count)


def in_tape(function: bool) -> Callable[[list[Any], Loss], dict[str, np.ndarray]]:
    def run(given: list[Any], divide: Loss) -> dict[str, np.ndarray]:
        w, optimizer, losses = tf.Variable(start()), tf.keras.optimizers.SGD(0.5, momentum=0.9), []

        def step(x: Any, mask: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = divided(x, mask, w, divide)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
            return loss

        call = tf.function(step) if function else step
        for x, mask in given:
            losses.append(float(call(tf.constant(x), tf.constant(mask))))
        return {"w": w.numpy(), "losses": np.array(losses)}

    return run


def in_session(given: list[Any], divide: Loss) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), v1.Session() as session:
        x, mask = v1.placeholder("float32", [None, 5]), v1.placeholder("bool", [None])
        w = v1.get_variable("w", initializer=start())
        loss = divided(x, mask, w, divide)
        train = v1.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
        session.run(v1.global_variables_initializer())
        losses = [session.run([loss, train], {x: a, mask: b})[0] for a, b in given]
        return {"w": session.run(w), "losses": np.array(losses)}


def by_own_count(total: Any, count: Any) -> Any:
    return total / tf.cast(tf.maximum(count, 1), total.dtype)


def case_uneven_counts() -> None:
    """Weights and the mean of the ranks' losses equal those of one process."""
    for name, run in (("eager", in_tape(False)), ("function", in_tape(True)), ("session", in_session)):
        with subtest(name):
            expected = one_process(lambda run=run: run(whole(), by_own_count))  # type: ignore[misc]
            apart = run(batches(tfdist.rank()), by_own_count)
            assert np.abs(apart["w"] - expected["w"]).max() > 1e-3, "no negative"
            found = run(batches(tfdist.rank()), tfdist.average_loss)
            found["losses"] = np.mean(everywhere(found["losses"]), axis=0)
            assert_close(found, expected, 1e-5)


def case_alone() -> None:
    if tfdist.rank() == 0:
        with tfdist.alone("a loss of its own"):
            assert float(tfdist.average_loss(tf.constant(6.0), 4)) == 1.5
    tfdist.barrier()
