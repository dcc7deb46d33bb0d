"""A checkpoint that only rank 0 has, of a model that is built in its first step, inside an eager tape."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.inside import everywhere
from tests.multirank.oracle import Feed, assert_close, data, mine, one_process
from tests.named import subtest

STEPS = 3


class Module(tf.Module):
    """A module that creates and attaches its variable in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.w: Any = None

    def __call__(self, x: Any) -> Any:
        if self.w is None:
            self.w = tf.Variable(tf.random.normal([x.shape[1], 3]), name="w")
        return tf.tanh(x @ self.w)


class Whole(tf.Module):
    """A module with two parts: one is attached after its variable exists, one is in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Any = None
        self.more: list[Any] = []

    def __call__(self, x: Any) -> Any:
        if self.first is None:
            first, second = Module(), Module()
            first(tf.zeros([1, x.shape[1]]))
            self.first = first
            self.more.append(second)
        return self.more[0](self.first(x))


def sequential() -> Any:
    return keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)])


def fresh(build: Callable[[], Any], seed: int) -> tuple[Any, Any]:
    tf.random.set_seed(seed)
    keras.utils.set_random_seed(seed)
    return build(), keras.optimizers.Adam(0.05, epsilon=1e-3)


def trained(model: Any, optimizer: Any, feeds: list[Feed]) -> dict[str, np.ndarray]:
    """Return variables and slots after eager steps."""
    for feed in feeds:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tf.constant(feed["x"])) - feed["y"]) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
    return {str(n): np.asarray(v) for n, v in enumerate([*model.trainable_variables, *optimizer.variables])}


def case_a_model_that_is_built_in_its_first_step() -> None:
    """Weights and slots equal those of one process that has restored the checkpoint."""
    feeds = data(steps=2 * STEPS)
    for build in (Module, Whole, sequential):
        with subtest(build), tempfile.TemporaryDirectory() as directory:

            def expected(build: Callable[[], Any] = build, directory: str = directory) -> Any:
                model, optimizer = fresh(build, 50)
                trained(model, optimizer, feeds[:STEPS])
                path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(f"{directory}/saved")
                again, other = fresh(build, 60)
                tf.train.Checkpoint(model=again, optimizer=other).restore(path)
                return path, trained(again, other, feeds[STEPS:])

            path, values = one_process(expected)
            model, optimizer = fresh(build, tfdist.rank())
            if tfdist.rank() == 0:
                tf.train.Checkpoint(model=model, optimizer=optimizer).restore(path)
            found = trained(model, optimizer, [mine(f) for f in feeds[STEPS:]])
            assert_close(found, values, 2e-5)
            own = {n: v.tolist() for n, v in found.items()}
            assert everywhere(own) == [own] * tfdist.size()


def case_a_checkpoint_that_rank_0_reads_between_two_eager_steps() -> None:
    """The checkpoint resets the weights, and Adam's moments and step, on all ranks."""
    feeds = data(steps=2 * STEPS)
    with tempfile.TemporaryDirectory() as directory:

        def train(feeds: list[Feed], path: str, reads: bool) -> dict[str, np.ndarray]:
            model, optimizer = fresh(sequential, tfdist.rank())
            checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
            trained(model, optimizer, feeds[:STEPS])
            checkpoint.write(path)
            trained(model, optimizer, feeds[STEPS:-1])
            if reads:
                checkpoint.read(path).assert_consumed()
            return trained(model, optimizer, feeds[-1:])

        values = one_process(lambda: train(feeds, f"{directory}/one", reads=True))
        rank = tfdist.rank()
        found = train([mine(f) for f in feeds], f"{directory}/{rank}", reads=rank == 0)
        assert_close(found, values, 2e-5)
        own = {n: v.tolist() for n, v in found.items()}
        assert everywhere(own) == [own] * tfdist.size()


def case_an_optimizer_that_each_rank_sets_in_its_own_way() -> None:
    """All ranks use rank 0's learning rate and moments, in functions and eagerly."""
    for wrap in (tf.function, lambda step: step):
        w = tf.Variable(np.arange(6, dtype=np.float32))
        optimizer = keras.optimizers.Adam(0.05, epsilon=1e-3)

        def step(x: Any, w: Any = w, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((w - x) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        with subtest(wrap):
            step_ = wrap(step)
            for number in range(STEPS):
                step_(tf.constant(float(tfdist.rank() + number)))
                optimizer.learning_rate.assign(0.05 / (2.0 + number + tfdist.rank()))
                moment = next(v for v in optimizer.variables if "momentum" in v.path)
                moment.assign(moment + float(tfdist.rank()))
            step_(tf.constant(float(tfdist.rank())))
            own = [np.asarray(v).tolist() for v in [w, *optimizer.variables]]
            assert everywhere(own) == [own] * tfdist.size()
            assert own[2] == np.float32(0.05 / (1.0 + STEPS)), own[2]
