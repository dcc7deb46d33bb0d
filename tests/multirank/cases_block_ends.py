"""The end of a block: ranks that are in different blocks are told, and no variable stays one rank's own in silence."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import refusal
from tests.multirank.inside import captured_log, everywhere, settings, through_mpi
from tests.multirank.oracle import v1

RANK, SIZE = tfdist.rank(), tfdist.size()


def trained(name: str) -> tuple[Any, Callable[[], Any]]:
    """Return a variable, and a function that trains it towards this rank's number."""
    w, optimizer = tf.Variable(tf.zeros([3]), name=name), keras.optimizers.SGD(0.1)
    return w, tf.function(lambda: optimizer.apply_gradients([(w - (RANK + 1.0), w)]))


def alike(value: Any) -> bool:
    return all(np.array_equal(value, other) for other in everywhere(np.asarray(value)))


def case_ranks_that_train_different_variables_are_told() -> None:
    with settings(through_mpi()):
        tfdist.configure(sync="average", block_steps=8, block_state="keep")
        (a, first), (b, second) = trained("a/w"), trained("b/w")
        first()
        second()
        tfdist.end_block()
        (second if RANK else first)()
        told = refusal(tfdist.end_block)
        assert "rank 0: step 1 of the block of a/w" in told and "of the block of b/w" in told, told
        (first if RANK else second)()
        tfdist.end_block()
        assert alike(a) and alike(b)


def case_ranks_with_different_numbers_of_steps_are_told() -> None:
    with settings(through_mpi()):
        tfdist.configure(sync="diloco", block_steps=8)
        w, train = trained("w")
        for _ in range(1 + (RANK == 0)):
            train()
        told = refusal(tfdist.end_block)
        assert "rank 0: step 2 of the block of w" in told, told
        for _ in range(RANK > 0):
            train()
        tfdist.end_block()
        assert alike(w)


def case_what_is_set_after_an_update_is_averaged_with_the_block() -> None:
    with settings(through_mpi()):
        tfdist.configure(sync="average", block_steps=4, block_state="keep")
        w, optimizer = tf.Variable(tf.zeros([5]), name="w"), keras.optimizers.SGD(0.1)

        @tf.function
        def step() -> None:
            optimizer.apply_gradients([(tf.ones([5]), w)])
            w.assign_add([0.1 * RANK] * 5)

        for _ in range(8):
            step()
        assert alike(w)
        np.testing.assert_allclose(w.numpy(), 0.8 * ((SIZE - 1) / 2 - 1), atol=1e-5)


def case_what_is_set_before_an_update_ends_the_job() -> None:
    with settings(through_mpi()):
        tfdist.configure(sync="average", block_steps=4, block_state="keep")
        w, optimizer = tf.Variable(tf.zeros([5]), name="w"), keras.optimizers.SGD(0.1)

        @tf.function
        def step() -> None:
            w.assign_add([0.1 * RANK] * 5)
            optimizer.apply_gradients([(w - 1.0, w)])

        def train() -> None:
            for _ in range(16):
                step()

        told = refusal(train)
        assert "the ranks are apart: w" in told and "which is trained" in told, told


def case_what_the_loss_reads_and_a_step_sets_ends_the_job() -> None:
    with settings(through_mpi()):
        tfdist.configure(sync="diloco", block_steps=2)
        w, center = tf.Variable(1.0, name="w"), tf.Variable(0.0, trainable=False, name="center")
        optimizer = keras.optimizers.SGD(0.1)

        @tf.function
        def step() -> None:
            center.assign(0.5 * center + RANK)
            with tf.GradientTape() as tape:
                loss = (w - center) ** 2
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        told = refusal(lambda: [step() for _ in range(8)])
        assert "center" in told and "which the loss reads" in told, told


def case_all_sessions_end_their_blocks() -> None:
    with settings(through_mpi()):
        tfdist.configure(sync="diloco", block_steps=6, block_delay=3)
        made = []
        for _ in range(2):
            with tf.Graph().as_default():
                w = v1.get_variable("w", [4], initializer=v1.zeros_initializer())
                train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum((w - RANK) ** 2))
                average = tf.train.ExponentialMovingAverage(0.9)
                with tf.control_dependencies([train]):
                    step = average.apply([w])
                session = v1.Session()
                session.run(v1.global_variables_initializer())
                made.append((session, step, w, average.average(w)))
        for _ in range(3):
            for session, step, *_ in made:
                session.run(step)
        tfdist.end_block()
        for session, _, w, moved in made:
            assert alike(session.run(w)) and alike(session.run(moved))
            session.close()


def case_a_session_that_was_dropped_is_no_difference() -> None:
    """Each rank collects garbage at another time."""
    with settings(through_mpi()):
        tfdist.configure(sync="diloco", block_steps=6)
        with tf.Graph().as_default() as graph:
            w = v1.get_variable("w", [4], initializer=v1.zeros_initializer())
            train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum((w - RANK) ** 2))
            graph.session = v1.Session()  # only the garbage collector finds it
            graph.session.run(v1.global_variables_initializer())
            graph.session.run(train)
        del graph, w, train
        if RANK:
            gc.collect()
        tfdist.end_block()


def case_moving_averages_of_keras_are_those_of_all_ranks() -> None:
    with settings(through_mpi()):
        tfdist.configure(sync="diloco", block_steps=4)
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01, use_ema=True), "mse")
        x = np.random.RandomState(RANK).randn(32, 4).astype(np.float32)
        seen: list[np.ndarray] = []
        look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(model.get_weights()[0]))
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0, callbacks=[swap, look])
        assert alike(seen) and alike(model.get_weights()[0])


def case_variables_that_are_set_while_an_exchange_is_in_flight() -> None:
    with settings(through_mpi()), tf.Graph().as_default():
        tfdist.configure(sync="diloco", block_steps=6, block_delay=3)
        w = v1.get_variable("w", [20000], initializer=v1.zeros_initializer())
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum((w - RANK) ** 2))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in range(14):
                if step == 4:
                    w.load(np.full(20000, 5, np.float32), session)
                session.run(train)
                time.sleep(0.2 * (RANK == 0 and 3 <= step <= 7))
            tfdist.end_block()
            assert alike(session.run(w))


def case_a_state_that_was_saved_with_other_blocks() -> None:
    x = np.random.RandomState(RANK).randn(32, 4).astype(np.float32)
    folder = everywhere(tempfile.mkdtemp())[0]
    with settings(through_mpi()):
        tfdist.configure(sync="average", block_steps=4, block_state="keep")
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(x, x.sum(1), batch_size=8, verbose=0)
        moments = model.optimizer.variables[2].numpy()
        if RANK == 0:
            model.save(Path(folder) / "m.keras")
    for sync in ("diloco", "gradients"):
        with settings(through_mpi()), captured_log() as lines:
            if sync != "gradients":
                tfdist.configure(sync=sync, block_steps=4)
            everywhere(0)
            model = keras.saving.load_model(Path(folder) / "m.keras")
            assert int(model.optimizer.iterations.numpy()) == 4
            assert RANK or np.array_equal(model.optimizer.variables[2].numpy(), moments)
            assert any("was saved with TFDIST_SYNC 'average'" in line for line in lines) == (RANK == 0), lines
            model.fit(x, x.sum(1), batch_size=8, verbose=0)
            assert alike(model.get_weights()[0])
