"""Requests to stop: one rank asks during a step, and all ranks read the request after the same step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.inside import everywhere, settings
from tests.multirank.oracle import v1

RANK, SIZE = tfdist.rank(), tfdist.size()
STEPS = 12
Step = Callable[[], None]


def in_a_session() -> Step:
    graph = tf.Graph()
    with graph.as_default():
        w = v1.get_variable("w", [3])
        update = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w) * (RANK + 1))
        session = v1.Session(graph=graph)
        session.run(v1.global_variables_initializer())
    return lambda: session.run(update)


def eagerly() -> Step:
    w, optimizer = tf.Variable([1.0, 2.0, 3.0]), keras.optimizers.SGD(0.1)

    def update() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * (RANK + 1)
        optimizer.apply([tape.gradient(loss, w)], [w])

    return update


def in_a_function() -> Step:
    return tf.function(eagerly())


def steps_until_told(step: Step, signalled: int) -> int:
    """Return this rank's number of steps until the request; a signal makes the last rank ask in step ``signalled``."""
    tfdist.ask_to_stop(False)
    before = signal.signal(signal.SIGUSR2, lambda *_: tfdist.ask_to_stop())
    try:
        for done in range(STEPS):
            if done == signalled and RANK == SIZE - 1:
                os.kill(os.getpid(), signal.SIGUSR2)
            tfdist.all_reduce(np.ones(2))  # does not pass the request on
            assert not tfdist.asked_to_stop() or SIZE == 1
            step()
            if tfdist.asked_to_stop():
                return done + 1
    finally:
        signal.signal(signal.SIGUSR2, before)
        tfdist.ask_to_stop(False)
    return STEPS


def case_all_ranks_know_after_the_step_in_which_one_has_asked() -> None:
    for style in (in_a_session, in_a_function, eagerly):
        step = style()
        assert everywhere(steps_until_told(step, 4)) == [5] * SIZE, style
        assert everywhere(steps_until_told(step, 0)) == [1] * SIZE, style  # the request was withdrawn and is made anew
        assert everywhere(steps_until_told(step, STEPS)) == [STEPS] * SIZE, style


def case_fit_ends_everywhere_where_a_callback_has_asked() -> None:
    class Stops(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            if batch == 3 and RANK == SIZE - 1:
                tfdist.ask_to_stop()

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            self.steps += 1
            self.model.stop_training = tfdist.asked_to_stop()

    model, stops = keras.Sequential([keras.layers.Dense(1)]), Stops()
    model.compile(optimizer="sgd", loss="mse")
    model.fit(np.ones([40, 2]) * RANK, np.ones([40, 1]), batch_size=4, callbacks=[stops], verbose=0)
    assert everywhere(stops.steps) == [4] * SIZE
    tfdist.ask_to_stop(False)


def case_a_request_is_told_at_the_end_of_a_block() -> None:
    for sync in ("average", "bmuf"):
        with settings(sync=sync, block_steps=4):
            step = in_a_session()
            assert everywhere(steps_until_told(step, 5)) == [8] * SIZE, sync
