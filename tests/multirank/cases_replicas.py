"""What the ranks compare and what not, and how tfdist handles differences. See cases_apart for ways to differ."""

from __future__ import annotations

import functools
import gc
import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_apart import LAST, RANK, SIZE, WAYS, Step, batches, in_a_function, noticed
from tests.multirank.cases_saves import shared_folder
from tests.multirank.inside import (
    captured_log,
    everywhere,
    forget_trainings,
    nobody_has_told_of_what_was_set,
    settings,
)
from tests.multirank.oracle import one_process, v1
from tests.named import subtest


def loss_of(w: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean((tf.linalg.matvec(x, w) - 1.0) ** 2)


def codebook(shared: bool = False, rows: int = 2, name: str = "code") -> tuple[Step, Any]:
    """Return a step that sets an untrained variable from a rank's batch before its loss reads it; and this variable."""
    w, code = tf.Variable(tf.eye(3)), tf.Variable(tf.ones([rows, 3]), trainable=False, name=name)
    optimizer = keras.optimizers.SGD(0.05)

    @tf.function
    def update(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            z = x @ w
            new = 0.9 * code + 0.1 * tf.reduce_mean(z, 0)
            code.assign(tfdist.all_reduce(new, "mean") if shared else new)
            loss = tf.reduce_mean((z - tf.stop_gradient(tf.reduce_mean(code, 0))) ** 2)
        optimizer.apply([tape.gradient(loss, w)], [w])

    return update, code


def case_what_the_loss_reads() -> None:
    said = noticed(lambda: codebook()[0])
    assert "code" in said and "which the loss reads" in said and "all_reduce(value, 'mean')" in said, said
    step, code = codebook()
    tfdist.keep_own(code)
    assert noticed(lambda: step) == ""
    assert noticed(lambda: codebook(shared=True)[0]) == ""
    for rows, name in ((8, "as_many_rows_as_the_batch"), (1, "moving_mean"), (3, "count")):
        with subtest(rows, name):  # neither sizes nor names tell whose it is
            assert f"the ranks are apart: {name}" in noticed(lambda r=rows, n=name: codebook(rows=r, name=n)[0])  # type: ignore[misc]


def case_inputs_that_a_script_sets() -> None:
    """What a script sets between two steps, and the loss reads, is each rank's own if the script says so."""
    for own, rows in ((True, 2), (False, 2), (False, 8)):
        graph = tf.Graph()
        with graph.as_default():
            x = v1.placeholder(tf.float32, [8, 3])
            w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
            given = v1.get_variable("given", [rows], initializer=v1.ones_initializer(), trainable=False)
            train = v1.train.AdamOptimizer(0.05).minimize(loss_of(w, x) * tf.reduce_sum(given))
            assign = given.assign(tf.fill([rows], tf.reduce_mean(x)))
            if own:
                tfdist.keep_own(given)
            session = v1.Session(graph=graph)
            session.run(v1.global_variables_initializer())

        def step(batch: Any) -> None:
            session.run(train, {x: batch})  # noqa: B023
            session.run(assign, {x: batch})  # noqa: B023

        with subtest(own, rows):
            said = noticed(lambda step=step: step)  # type: ignore[misc]
            assert said == "" if own else "the ranks are apart: given, which the loss reads" in said, said


def case_shapes_of_tensorflow_1() -> None:
    """Elements of TensorFlow 1's shapes are ``Dimension`` objects, not numbers."""
    v1.disable_v2_tensorshape()
    try:
        assert noticed(in_a_session) == ""
    finally:
        v1.enable_v2_tensorshape()


def case_what_is_meant_to_differ() -> None:
    """Batch statistics, metrics, dropout's random numbers, and the states of recurrent layers, also of one sample."""
    random = np.random.RandomState(RANK)
    x, y = random.randn(96, 4, 3).astype("f"), random.randn(96, 1).astype("f")
    for batch, recurrent in ((8, keras.layers.LSTM), (1, keras.layers.GRU)):
        model = keras.Sequential(
            [
                keras.Input([4, 3], batch_size=batch),
                keras.layers.BatchNormalization(),
                keras.layers.Bidirectional(recurrent(3, stateful=True)),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        for eagerly in (False, True):
            with subtest(batch, eagerly):
                model.run_eagerly = eagerly
                model.fit(x[: 12 * batch], y[: 12 * batch], batch_size=batch, epochs=2, shuffle=False, verbose=0)


def case_statistics_of_a_subclassed_model() -> None:
    """Keras makes its variables later than its layers: it infers shapes before."""

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layers_of_it = [keras.layers.BatchNormalization(), keras.layers.LSTM(3, stateful=True)]
            self.end = keras.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            for layer in self.layers_of_it:
                x = layer(x, training=training)
            return self.end(x)

    random = np.random.RandomState(RANK)
    for function in (False, True):
        model, optimizer = Model(), keras.optimizers.SGD(0.01)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        with subtest(function):
            model(np.zeros([4, 2, 3], "f"))
            call = tf.function(step) if function else step
            assert noticed(lambda call=call: lambda _: call(random.randn(4, 2, 3).astype("f"))) == ""  # type: ignore[misc]


def case_a_layer_that_standardizes_by_its_batches() -> None:
    """The loss reads what the forward pass has set; a constant of the step has as many entries as the state."""

    class Standardize(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.moving_mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.moving_mean.assign(0.9 * self.moving_mean + 0.1 * keras.ops.mean(x, 0))
            return (x - self.moving_mean) * tf.constant([1.0, 2.0, 3.0])

    x = np.random.RandomState(RANK).randn(24, 3).astype("f")
    for eagerly in (False, True):
        model = keras.Sequential([keras.Input([3]), Standardize(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=eagerly)
        with subtest(eagerly):
            said = noticed(lambda model=model: lambda b: model.fit(x, x[:, :1], batch_size=3, verbose=0))  # type: ignore[misc]
            assert "which the loss reads" in said and "tfdist.keep_own" in said, said


def case_statistics_of_a_frozen_layer_are_told() -> None:
    """While the layer trains it reads the batch's statistics, and its own ones may differ without a word."""
    x = np.random.RandomState(RANK).randn(8, 3).astype("f")
    layers: list[Any] = [layer for _ in range(3) for layer in (keras.layers.BatchNormalization(), keras.layers.ReLU())]
    model = keras.Sequential([keras.Input([3]), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)

    @tf.function
    def step(frozen: bool) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=not frozen) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for frozen, averaged in ((False, False), (True, False), (False, False), (True, True)):
        if averaged:
            tfdist.average_variables(model)
        with subtest(frozen, averaged), settings(check="1"), captured_log() as lines:
            for _ in range(4):
                step(frozen)
            said = [line for line in lines if "which the loss reads, is a moving statistic" in line]
            assert len(said) == (frozen and not averaged and RANK == 0), lines
            assert all("moving_" in line and "(and 5 more)" in line for line in said), said


def in_a_session(feed: Callable[[int], dict[str, float]] = lambda step: {}) -> Step:
    graph = tf.Graph()
    with graph.as_default():
        x, rate = v1.placeholder(tf.float32, [8, 3]), v1.placeholder_with_default(0.05, [])
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        train = v1.train.MomentumOptimizer(rate, 0.9).minimize(loss_of(w, x))
        assign = w.assign(w * 0.5 + tf.reduce_mean(x))
        session = v1.Session(graph=graph)
        session.run(v1.global_variables_initializer())
    numbers = iter(range(1000))

    def step(batch: Any) -> None:
        number = next(numbers)
        given = feed(number)
        if "assign" in given:
            session.run(assign, {x: batch})
        if "load" in given:
            with graph.as_default():
                w.load(np.full(3, RANK + 2.0, "f"), session)
        session.run(train, {x: batch, rate: given.get("rate", 0.05)})

    return step


def case_what_a_session_is_fed() -> None:
    for feed in (lambda step: {"rate": 0.05 + 0.001 * RANK}, lambda step: {"rate": 0.05 + 0.01 * RANK * (step == 3)}):
        assert "the ranks are apart: w" in noticed(lambda feed=feed: in_a_session(feed))  # type: ignore[misc]
    assert noticed(in_a_session, steps=40) == ""


def case_what_one_rank_assigns_in_a_session_that_trains() -> None:
    """All ranks have rank 0's values after the next step, and one line is logged."""
    nobody_has_told_of_what_was_set()
    with captured_log() as lines:
        for name, which in itertools.product(("assign", "load"), ([0], [LAST], range(SIZE))):
            own = {3: {name: 1.0}} if RANK in which else {}
            with subtest(name, which):
                step = in_a_session(lambda step, own=own: own.get(step, {}))  # type: ignore[misc]
                assert noticed(lambda step=step: step, steps=30) == ""  # type: ignore[misc]
    assert RANK or sum("on some ranks, between two steps" in line for line in lines) == 1, lines
    assert RANK or any(line.startswith("w and ") and "between two steps, to other" in line for line in lines), lines


def training(style: str, steps: int, change: Callable[[int, Any], None]) -> list[Any]:
    """Train a model, call ``change(step, model)`` before each step, and return the weights on this rank at the end."""
    kind = keras
    if style == "tf_keras":
        import tf_keras as kind  # type: ignore[no-redef]
    norm = [kind.layers.BatchNormalization(synchronized=True)] if "moments" in style else []
    model = kind.Sequential([kind.layers.Input([3]), *norm, kind.layers.Dense(1)])
    optimizer = kind.optimizers.SGD(1e-5)
    together = 2 if "two steps" in style else 1
    random = np.random.RandomState(RANK)
    x = random.randn(4 * steps, 3).astype("f")
    if "fit" in style or style == "tf_keras":
        model.compile(optimizer, "mse", steps_per_execution=together)
        begins = kind.callbacks.LambdaCallback(on_batch_begin=lambda step, logs: change(step, model))
        model.fit(x, x[:, :1], batch_size=4, verbose=0, shuffle=False, callbacks=[begins])
        return model.get_weights()

    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    computed = tf.function(gradients) if style == "gradients by a function" else gradients

    def step(x: Any) -> None:
        optimizer.apply_gradients(zip(computed(x), model.trainable_variables, strict=True))

    def several(x: Any) -> None:
        for part in tf.data.Dataset.from_tensor_slices(tf.reshape(x, [-1, 4, 3])):
            step(part)

    call = tf.function(several) if together > 1 else tf.function(step) if style.startswith("function") else step
    for number in range(0, steps, together):
        if "a new function" in style and number == 4:
            call = tf.function(lambda x: several(x))
        change(number, model)
        call(tf.constant(x[4 * number : 4 * (number + together)]))
    return model.get_weights()


def case_weights_that_some_ranks_set_between_steps() -> None:
    """All ranks continue with rank 0's values, in each style; sessions: the case above."""
    for style in (
        "function",
        "function after moments",
        "function of two steps",
        "a new function of two steps",
        "gradients by a function",
        "eager",
        "fit",
        "fit, two steps in a call",
        "tf_keras",
    ):
        if style == "tf_keras" and importlib.util.find_spec("tf_keras") is None:
            continue
        for which in ([0], [LAST], list(range(SIZE))):

            def change(step: int, model: Any, which: list[int] = which) -> None:
                if step == 4 and RANK in which:
                    model.set_weights([np.full(w.shape, 5.0 + RANK) for w in model.get_weights()])

            with subtest(style, which), captured_log() as lines:
                ranks = everywhere(training(style, 8, change)[-2:])
                for weights in zip(*ranks, strict=True):
                    assert np.ptp(weights, axis=0).max() == 0
                    assert (np.abs(weights[0] - 5.0).max() < 0.5) == (0 in which), weights[0]
                assert RANK or any("were set" in line for line in lines), lines


def case_rounding_is_told_once_and_mended() -> None:
    """As on different processors: the last bits of an update differ."""

    with captured_log() as lines:
        w = tf.Variable(tf.ones([3]), name="w")
        optimizer = keras.optimizers.SGD(0.05)

        @tf.function
        def update(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(w, x)
            optimizer.apply([tape.gradient(loss, w) * (1.0 + 1.5e-7 * RANK / (SIZE - 1))], [w])

        found = noticed(lambda: update, steps=40)
        assert found == "", found
    told = [line for line in lines if "by rounding" in line]
    assert len(told) == (RANK == 0), lines
    assert np.ptp(everywhere(w.numpy()), axis=0).max() < 1e-5


def case_to_read_is_not_to_set() -> None:
    """Saving, or evaluation in a loop on one rank, between two steps loses no rank's gradients."""
    for resource in (False, True):
        with tf.Graph().as_default(), captured_log() as lines:
            x = v1.placeholder(tf.float32, [8, 3])
            w = v1.get_variable("w", [3], initializer=v1.ones_initializer(), use_resource=resource)
            train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.reduce_sum(x * w, 1)))
            total = tf.while_loop(lambda n, t: n < 3, lambda n, t: (n + 1, t + tf.reduce_sum(w)), (0, 0.0))  # noqa: B023
            branch = tf.cond(total[1] > 0.0, lambda: tf.reduce_sum(w), lambda: 0.0)  # noqa: B023
            saver = v1.train.Saver()
            expected = np.ones(3)
            with v1.Session() as session, shared_folder() as folder:
                session.run(v1.global_variables_initializer())
                for batch in batches(6):
                    session.run(train, {x: batch})
                    saver.save(session, f"{folder}/model")
                    if RANK == 0:
                        session.run([total, branch])
                    expected = expected - 0.1 * np.mean(everywhere(batch), axis=(0, 1))
                np.testing.assert_allclose(session.run(w), expected, rtol=1e-5)
        assert not [line for line in lines if "were set in a session" in line], lines


def case_statistics_of_a_scripts_own() -> None:
    """Normalization as written for TensorFlow 1: with batch statistics in training, moving averages otherwise.

    TensorFlow's moving averages are each rank's own. Those that the script itself moves are so if it says this.
    """
    for names in ("moments", "running_mean"):
        with tf.Graph().as_default():
            x, training = v1.placeholder(tf.float32, [8, 3]), v1.placeholder_with_default(True, [])
            mean, variance = tf.nn.moments(x, [0])
            if names == "moments":
                average = tf.train.ExponentialMovingAverage(0.9)
                moved = average.apply([mean, variance])
                held = average.average(mean), average.average(variance)
            else:
                held = tuple(
                    v1.get_variable(f"running_{name}", [3], initializer=v1.ones_initializer(), trainable=False)
                    for name in ("mean", "var")
                )
                pairs = zip(held, (mean, variance), strict=True)
                moved = tf.group([v.assign(0.9 * v + 0.1 * new) for v, new in pairs])
            used = tf.cond(training, lambda: (mean, variance), lambda held=held: held)  # noqa: B023
            w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
            loss = loss_of(w, (x - used[0]) * tf.math.rsqrt(used[1] + 1e-3))
            with tf.control_dependencies([moved]):
                train = v1.train.AdamOptimizer(0.05).minimize(loss)
            session = v1.Session()
            session.run(v1.global_variables_initializer())
        with subtest(names), captured_log() as lines:
            said = noticed(lambda session=session, train=train, x=x: lambda b: session.run(train, {x: b}))  # type: ignore[misc]
            told = sum("(and 1 more), which the loss reads, is a moving statistic" in line for line in lines)
            if names == "moments":
                assert said == "" and told == (RANK == 0), (said, lines)
            else:
                assert "running_mean, which the loss reads" in said and "tfdist.keep_own" in said, said


def case_part_of_a_session_is_initialised() -> None:
    """One part of a program trains while the variables of another part are not initialized."""
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [8, 3])
        parts = [v1.get_variable(name, [3], initializer=v1.ones_initializer()) for name in ("first", "second")]
        trains = [v1.train.AdamOptimizer(0.05, name=f"adam{n}").minimize(loss_of(w, x)) for n, w in enumerate(parts)]
        session = v1.Session()
        first = [v for v in v1.global_variables() if "second" not in v.name and "adam1" not in v.name]
        session.run([v.initializer for v in first])
    assert noticed(lambda: lambda batch: session.run(trains[0], {x: batch})) == ""


def case_check_can_be_chosen() -> None:
    with settings(check="off"):
        assert noticed(lambda: in_a_function(WAYS["scale"])) == ""
    with settings(check="3"):
        counted = []
        step = in_a_function(WAYS["scale"])
        for number, batch in enumerate(batches(9)):
            try:
                step(batch)
            except tfdist.DisagreementError:
                counted.append(number)
                break
        forget_trainings()
        assert counted == [3], counted


def case_an_optimizer_that_one_rank_has_collected() -> None:
    """Ranks collect garbage at different times, but the same optimizers train on all of them."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [8, 3])
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        optimizer = v1.train.MomentumOptimizer(0.05, 0.9)
        optimizer.itself = optimizer
        train = optimizer.minimize(loss_of(w, x))
        del optimizer
        if RANK:
            gc.collect()
        session.run(v1.global_variables_initializer())
        assert noticed(lambda: lambda batch: session.run(train, {x: batch})) == ""


def case_an_update_does_not_meet_a_fetch() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [8, 3])
        w = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        optimizer = v1.train.AdamOptimizer(0.05)
        pairs = optimizer.compute_gradients(loss_of(w, x))
        train = optimizer.apply_gradients(pairs)
        norm = tf.norm(pairs[0][0])
        session.run(v1.global_variables_initializer())
        first, second, third = batches(3)
        session.run(train, {x: first})
        session.run(norm, {x: second})  # on all ranks: allowed
        try:
            session.run(norm if RANK == 0 else train, {x: third})
        except tfdist.DisagreementError as error:
            assert "rank 0 evaluates average of gradients 0" in str(error), error
        else:
            raise AssertionError("it was not refused")


def case_an_epoch_ends_on_all_ranks_after_the_same_step() -> None:
    """A callback of one rank sets stop_training within an epoch."""

    class Stops(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if RANK == LAST and batch == at:
                self.model.stop_training = True

    for at, expected in ((3, 5), (9, 10)):
        model, stops = keras.Sequential([keras.layers.Dense(1)]), Stops()
        model.compile(optimizer="sgd", loss="mse")
        history = model.fit(
            np.ones([40, 2]) * RANK, np.ones([40, 1]), batch_size=4, epochs=3, callbacks=[stops], verbose=0
        )
        assert everywhere(stops.steps) == [expected] * SIZE, (at, stops.steps)
        assert len(history.epoch) == 1


def case_training_that_a_callback_stops_before_a_step() -> None:
    """It ends after this step, as in one process, also if one rank alone stops it."""

    def steps(where: str, which: list[int]) -> int:
        def stop(at: int, logs: Any = None) -> None:
            model.stop_training = model.stop_training or (at == 1 and RANK in which)

        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        begin = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: stop(1)) if where == "train" else None
        epoch = keras.callbacks.LambdaCallback(on_epoch_begin=stop)
        batch = keras.callbacks.Callback()
        batch.on_train_batch_begin = stop
        callbacks = {"train": begin, "epoch": epoch, "batch": batch}[where]
        model.fit(np.ones([40, 2]), np.ones([40, 1]), batch_size=4, epochs=3, callbacks=[callbacks], verbose=0)
        return int(model.optimizer.iterations)

    for where in ("train", "epoch", "batch"):
        expected = one_process(functools.partial(steps, where, [RANK]))
        assert expected == {"train": 1, "epoch": 11, "batch": 2}[where]
        for which in ([LAST], list(range(SIZE))):
            with subtest(where, which):
                assert everywhere(steps(where, which)) == [expected] * SIZE


def case_terminate_on_nan() -> None:
    y = np.ones([32, 1], "f")
    y[13] = np.nan if RANK == LAST else 1.0
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model.fit(
        np.ones([32, 2]),
        y,
        batch_size=4,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[keras.callbacks.TerminateOnNaN()],
    )
    assert len(set(everywhere(int(model.optimizer.iterations)))) == 1


def case_the_best_weights_that_one_rank_restores() -> None:
    x = np.random.RandomState(RANK).randn(32, 3).astype("f")
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    best = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
    model.fit(
        x,
        x[:, :1],
        batch_size=8,
        epochs=8,
        verbose=0,
        validation_data=(x, -x[:, :1]),
        callbacks=[best] if RANK == 0 else [],
    )
    assert np.ptp(everywhere(model.get_weights()[0]), axis=0).max() == 0.0


def case_layers_that_were_adapted_to_a_share() -> None:
    whole = np.random.RandomState(0).randn(16, 3).astype("f")
    for share in (False, True):
        layer = keras.layers.Normalization()
        layer.adapt(whole[RANK::SIZE] if share else whole)
        model = keras.Sequential([keras.Input([3]), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        try:
            model.fit(whole[RANK::SIZE], whole[RANK::SIZE, :1], batch_size=2, verbose=0)
        except tfdist.DisagreementError as error:
            assert share and "was adapted to other data on each rank" in str(error), error
        else:
            assert not share


def case_a_session_of_a_worker_has_no_chief_to_wait_for() -> None:
    with tf.Graph().as_default():
        w = v1.get_variable("w", [3])
        x = tf.constant(np.random.RandomState(RANK).randn(8, 3), tf.float32)
        steps = v1.train.get_or_create_global_step()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss_of(w, x), global_step=steps)
        with v1.train.MonitoredTrainingSession(is_chief=RANK == 0) as session:
            for _ in range(3):
                session.run(train)
            assert np.ptp(everywhere(session.run(w)), axis=0).max() == 0.0


def case_a_hook_of_rank_0_restores_before_the_first_step() -> None:
    class Restores(v1.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            w.load([3.0, 4.0, 5.0], session)

    with tf.Graph().as_default():
        w = v1.get_variable("w", [3])
        x = tf.constant(np.random.RandomState(RANK).randn(8, 3), tf.float32)
        train = v1.train.GradientDescentOptimizer(0.0).minimize(loss_of(w, x))
        v1.train.get_or_create_global_step()
        with v1.train.MonitoredTrainingSession(hooks=[Restores()] if RANK == 0 else []) as session:
            session.run(train)
            assert everywhere(session.run(w).tolist()) == [[3.0, 4.0, 5.0]] * SIZE
