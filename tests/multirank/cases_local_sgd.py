"""Blocks of local steps: BMUF and plain averaging against a computation in NumPy, with other data on each rank."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.training import moving_averages

import tfdist
from tests.multirank.cases_keras import assert_fit_law
from tests.multirank.cases_programs import refusal, through_checkpoint
from tests.multirank.inside import captured_log, everywhere, job_blocks, settings, state_of, through_mpi
from tests.multirank.oracle import SavedFunction, SavedGraph, v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()
STEPS, BLOCK, RATE, MOMENTUM = 12, 4, 0.2, 0.9
ROWS = 5
_RANDOM = np.random.RandomState(5)
TARGETS = _RANDOM.randn(4, STEPS, 3).astype(np.float32)
LOOKED_UP = _RANDOM.randint(0, ROWS, (4, STEPS, 2))  # some rows twice
FIRST = {"w": np.array([1, -2, 3], np.float32), "e": _RANDOM.randn(ROWS, 2).astype(np.float32)}
Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Filter:
    """Settings of local SGD, for tfdist and for the oracle in NumPy."""

    sync: str = "bmuf"
    momentum: float = 1 - 1 / SIZE
    rate: float = 1.0
    nesterov: bool = False
    state: str = "reset"
    warmup: int = 0

    @contextlib.contextmanager
    def set(self) -> Iterator[None]:
        more: dict[str, Any] = {}
        if self.sync in ("bmuf", "diloco") and self != DILOCO:
            more = {"block_learning_rate": self.rate, "block_nesterov": self.nesterov}
            if self.momentum != 1 - 1 / SIZE:  # the default
                more["block_momentum"] = self.momentum
        with settings(through_mpi()):
            if self != DILOCO:  # which is its defaults
                more["block_state"] = self.state
            tfdist.configure(sync=self.sync, block_steps=BLOCK, block_warmup=self.warmup, **more)
            yield


PLAIN = Filter("average", momentum=0)
DILOCO = Filter("diloco", momentum=0.9, rate=0.7, nesterov=True, state="keep")
FILTERS = (Filter(), Filter(nesterov=True), Filter(momentum=0.3, rate=0.7), PLAIN, DILOCO)


def gradients(rank: int, step: int, values: Values) -> Values:
    """Return the gradients of ``loss``."""
    of_e = np.zeros_like(values["e"])
    for row in LOOKED_UP[rank, step]:
        of_e[row] += values["e"][row] + TARGETS[rank, step, :2]
    return {"w": values["w"] - TARGETS[rank, step], "e": of_e}


def loss(w: Any, e: Any, target: Any, rows: Any) -> Any:
    found = tf.nn.embedding_lookup(e, rows)
    return 0.5 * tf.reduce_sum((w - target) ** 2) + tf.reduce_sum(found * target[:2] + 0.5 * found**2)


def expected(asked: Filter, momentum: float = 0.0, steps: int = STEPS, ends: tuple[int, ...] = ()) -> list[Values]:
    """Return the values of all ranks after the warm-up and after each block; ``ends``: steps that cut a block off."""
    ranks = [{n: v.astype(np.float64) for n, v in FIRST.items()} for _ in range(SIZE)]
    slots = [{n: np.zeros_like(v) for n, v in ranks[0].items()} for _ in range(SIZE)]
    change = {n: np.zeros_like(v) for n, v in ranks[0].items()}
    start, filtered = dict(ranks[0]), dict(ranks[0])
    found: list[Values] = []
    done = -asked.warmup
    for step in range(steps):
        own = [gradients(rank, step, ranks[rank]) for rank in range(SIZE)]
        if done < 0:
            own = [{n: np.mean([g[n] for g in own], axis=0) for n in own[0]}] * SIZE
        for rank in range(SIZE):
            for n in ("w", "e"):
                slots[rank][n] = momentum * slots[rank][n] + own[rank][n]
                ranks[rank][n] = ranks[rank][n] - RATE * slots[rank][n]
        done += 1
        if done == 0:
            start, filtered = dict(ranks[0]), dict(ranks[0])
            found.append(dict(start))
        if done != BLOCK and not (done > 0 and step + 1 in ends):
            continue
        done = 0
        for n in ("w", "e"):
            mean = np.mean([values[n] for values in ranks], axis=0)
            change[n] = asked.momentum * change[n] + asked.rate * (mean - start[n])
            filtered[n] = filtered[n] + change[n]
            start[n] = filtered[n] + asked.momentum * change[n] * asked.nesterov
            average = np.mean([of[n] for of in slots], axis=0)
            for rank in range(SIZE):
                ranks[rank][n] = start[n]
                slots[rank][n] = {"reset": 0 * average, "average": average, "keep": slots[rank][n]}[asked.state]
        found.append(dict(start))
    return found


def assert_same(found: list[Values], wanted: list[Values]) -> None:
    """Check the values on all ranks, and that all ranks have the same bits."""
    assert len(found) == len(wanted), (len(found), len(wanted))
    for block, (one, other) in enumerate(zip(found, wanted, strict=True)):
        for name, value in other.items():
            np.testing.assert_allclose(one[name], value, 2e-5, 2e-5, err_msg=f"{name} after block {block}")
    for block, ranks in enumerate(zip(*everywhere(found), strict=True)):
        for name in found[0]:
            assert all(np.array_equal(one[name], ranks[0][name]) for one in ranks), (block, name)


class InSession(SavedGraph):
    """A graph of TensorFlow 1, and a session."""

    def __init__(self, momentum: float = 0.0, resource: bool = True, separate: bool = False) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            values = {n: v if RANK == 0 else 7 + v for n, v in FIRST.items()}  # rank 0's values are broadcast
            self.variables = {n: v1.get_variable(n, initializer=v, use_resource=resource) for n, v in values.items()}
            self.target = v1.placeholder(tf.float32, [3])
            self.rows = v1.placeholder(tf.int32, [2])
            total = loss(self.variables["w"], self.variables["e"], self.target, self.rows)
            steps = v1.train.get_or_create_global_step()
            if separate:
                first = sgd(0).minimize(total, var_list=[self.variables["w"]])
                with tf.control_dependencies([first]):
                    self.step = sgd(momentum).minimize(total, steps, [self.variables["e"]])
            else:
                self.step = sgd(momentum).minimize(total, steps)
            self.saver = v1.train.Saver()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def run(self, step: int) -> None:
        self.session.run(self.step, {self.target: TARGETS[RANK, step], self.rows: LOOKED_UP[RANK, step]})


def sgd(momentum: float) -> Any:
    # (Momentum's update with slices does not change the other rows.)
    return v1.train.MomentumOptimizer(RATE, momentum) if momentum else v1.train.GradientDescentOptimizer(RATE)


class InFit:
    """Keras's ``fit`` with one block of steps per epoch."""

    def __init__(self, momentum: float = 0.0) -> None:
        self.optimizer = keras.optimizers.SGD(RATE, momentum=momentum)
        self.model = Both()
        self.model.compile(optimizer=self.optimizer)
        self.at_ends: list[Values] = []

    def values(self) -> Values:
        return {"w": self.model.w.numpy(), "e": self.model.e.numpy()}

    def run(self, first: int, steps: int, **options: Any) -> None:
        """Train one epoch for each block."""
        own = slice(first, first + steps)
        data = tf.data.Dataset.from_tensor_slices((TARGETS[RANK, own], LOOKED_UP[RANK, own].astype(np.int32)))
        note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: self.at_ends.append(self.values()))
        self.model.fit(data, callbacks=[note], verbose=0, **options)


@keras.saving.register_keras_serializable("tests")
class Both(keras.Model):
    """The loss of all programs as a model."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, value in FIRST.items():
            first = value if RANK == 0 else 7 + value
            setattr(self, name, self.add_weight(shape=value.shape, initializer=lambda *a, v=first, **k: v, name=name))
        self.built = True

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            total = loss(self.w.value, self.e.value, *data)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))
        return {"loss": total}

    def test_step(self, data: Any) -> Any:
        return {"loss": loss(self.w.value, self.e.value, *data)}


class InFunction(SavedFunction):
    """A tape in a function, with an optimizer of Keras."""

    def __init__(self, momentum: float = 0.0, separate: bool = False) -> None:
        self.variables = {n: tf.Variable(v if RANK == 0 else 7 + v, name=n) for n, v in FIRST.items()}
        self.optimizer = keras.optimizers.SGD(RATE, momentum=momentum)
        self.other = keras.optimizers.SGD(RATE) if separate else None
        self.checkpoint = tf.train.Checkpoint(optimizer=self.optimizer, **self.variables)

        @tf.function
        def train(target: Any, rows: Any) -> None:
            w, e = self.variables["w"], self.variables["e"]
            with tf.GradientTape() as tape:
                total = loss(w, e, target, rows)
            of_w, of_e = tape.gradient(total, [w, e])
            if self.other is None:
                self.optimizer.apply_gradients([(of_w, w), (of_e, e)])
            else:
                self.optimizer.apply_gradients([(of_w, w)])
                self.other.apply_gradients([(of_e, e)])

        self.train = train

    def run(self, step: int) -> None:
        self.train(tf.constant(TARGETS[RANK, step]), tf.constant(LOOKED_UP[RANK, step], tf.int32))


Program = Any


def blocks(program: Program, first: int = 0, steps: int = STEPS, warmup: int = 0) -> list[Values]:
    """Return the values after the warm-up and after each block."""
    found = []
    for step in range(first, steps):
        program.run(step)
        if step + 1 >= warmup and (step + 1 - warmup) % BLOCK == 0:
            found.append(program.values())
        elif step + 1 > warmup and SIZE > 1:
            own = everywhere(program.values()["w"])
            assert not np.array_equal(own[0], own[1]), "the ranks train on their own inside a block"
    return found


def case_three_blocks() -> None:
    for make in (InSession, InFunction):
        for asked in FILTERS:
            with subtest(make.__name__, asked), asked.set():
                assert_same(blocks(make()), expected(asked))


def case_the_state_of_an_optimizer() -> None:
    for make in (InSession, InFunction):
        for state in ("reset", "average", "keep"):
            asked = Filter(state=state)
            with subtest(make.__name__, state), asked.set():
                found, wanted = blocks(make(MOMENTUM)), expected(asked, MOMENTUM)
                # (Unlike the oracle, Momentum does not change rows without a gradient.)
                assert_same([{"w": values["w"]} for values in found], [{"w": values["w"]} for values in wanted])


def case_blocks_in_fit() -> None:
    for asked, momentum in ((Filter(nesterov=True), 0.0), (PLAIN, 0.0), (Filter(state="average"), MOMENTUM)):
        with subtest(asked), asked.set():
            program = InFit(momentum)
            for first in range(0, STEPS, BLOCK):
                program.run(first, BLOCK)
            names = ("w",) if momentum else ("w", "e")
            wanted = [{n: values[n] for n in names} for values in expected(asked, momentum)]
            assert_same([{n: values[n] for n in names} for values in program.at_ends], wanted)


def case_several_steps_an_execution_and_tf_keras() -> None:
    """Blocks of 4 steps in calls of 2 steps; the end of ``fit`` cuts a block off."""
    import tf_keras

    x = np.ones([6, 1], np.float32) * (RANK + 1)

    def plain(steps: int) -> float:
        own = np.ones(SIZE)
        for step in range(steps):
            own = own - 0.1 * 2 * np.arange(1, SIZE + 1) * (own * np.arange(1, SIZE + 1) - 1)
            if (step + 1) % BLOCK == 0 or step + 1 == steps:
                own[:] = own.mean()
        return float(own[0])

    for package in (keras, tf_keras):
        with subtest(package.__name__), PLAIN.set():
            layer = package.layers.Dense(1, use_bias=False, kernel_initializer="ones")
            model = package.Sequential([package.layers.Input([1]), layer])
            model.compile(package.optimizers.SGD(0.1), "mse", steps_per_execution=2)
            model.fit(x, np.ones_like(x), batch_size=1, shuffle=False, verbose=0)
            np.testing.assert_allclose(np.squeeze(layer.get_weights()[0]), plain(6), rtol=1e-5)


def case_steps_of_one_call_that_a_block_does_not_end_after_are_refused() -> None:
    """Steps of an execution of Keras, a loop in a function, and steps of a warm-up, which shift the blocks."""
    for warmup, steps, due, last in ((0, 3, 4, 6), (2, 2, 0, 0), (2, 4, 4, 6)):
        asked = dataclasses.replace(PLAIN, warmup=warmup)
        with subtest(warmup, steps), asked.set():
            w, optimizer = tf.Variable([1.0], name="w"), keras.optimizers.SGD(0.1)

            @tf.function
            def loop() -> None:
                for _ in tf.range(steps):  # noqa: B023
                    optimizer.apply_gradients([(w * (RANK + 1.0), w)])  # noqa: B023

            def train() -> None:
                for _ in range(3):
                    loop()  # noqa: B023

            if last:
                told = refusal(train)
                assert f"is due after step {due}" in told and f"went on to step {last}" in told, told
                assert "multiples of the steps of one call" in told, told
            else:
                train()
                assert all(np.array_equal(own, w.numpy()) for own in everywhere(w.numpy()))
            tfdist.end_block()
    with PLAIN.set():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=6)
        told = refusal(lambda: model.fit(np.ones([12, 1]), np.ones([12, 1]), batch_size=1, verbose=0))
        assert "steps_per_execution" in told, told
        tfdist.end_block()


def training(w: Any) -> Any:
    """Return a function that trains with an optimizer of its own, which only the garbage collector finds."""
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.itself = [optimizer]
    return tf.function(lambda: optimizer.apply_gradients([(w * (RANK + 1), w)]))


def case_an_optimizer_that_is_gone_leaves_no_rank_apart() -> None:
    """Its block is ended on all ranks, also if only one has collected it as garbage."""
    with PLAIN.set():
        w = tf.Variable([1.0])

        def train_once() -> None:
            training(w)()

        train_once()
        np.testing.assert_allclose(w.numpy(), [-RANK])
        if RANK:
            gc.collect()
        job_blocks()._told = False
        with captured_log() as lines, tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(w=w).save(str(Path(folder) / "c"))
        assert len([line for line in lines if "1 steps after the ranks had" in line]) == (RANK == 0), lines
        tfdist.end_block()
        np.testing.assert_allclose(w.numpy(), [-(SIZE - 1) / 2])
        train_once()
        if RANK:
            gc.collect()
        assert "steps of another optimizer's block" in refusal(train_once)
    tfdist.end_block()  # by the settings with which the block began
    assert all(np.array_equal(own, w.numpy()) for own in everywhere(w.numpy()))


def case_what_blocks_have_made_goes_with_the_optimizer() -> None:
    """A function that was traced while it was there does not need it."""
    with PLAIN.set():
        w = tf.Variable([1.0])

        def traced_beside_another() -> tuple[Any, weakref.ref[Any]]:
            training(w)()
            tfdist.end_block()
            state = weakref.ref(job_blocks()._every[-1])
            function = training(w)
            function.get_concrete_function()
            return function, state

        function, state = traced_beside_another()
        gc.collect()
        tfdist.end_block()
        gc.collect()
        assert state() is None
        function()
        tfdist.end_block()


def case_what_is_set_inside_a_block_and_gradients_without_an_optimizer() -> None:
    with PLAIN.set():
        w, other = tf.Variable([1.0]), tf.Variable([1.0])
        optimizer = keras.optimizers.SGD(1.0)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                total = tf.reduce_sum(w * (RANK + 1) + other * (RANK + 1))
            of_w, of_other = tape.gradient(total, [w, other])
            optimizer.apply_gradients([(of_w, w)])
            other.assign_sub(of_other)

        step()
        np.testing.assert_allclose(w.numpy(), [-RANK])  # the rank's own value
        np.testing.assert_allclose(other.numpy(), [1 - (SIZE + 1) / 2])  # the average
        w.assign([10.0 + RANK])
        step()
        np.testing.assert_allclose(w.numpy(), [10 - (RANK + 1.0)])  # starts from rank 0's value
        tfdist.end_block()
        np.testing.assert_allclose(w.numpy(), [10 - (SIZE + 1) / 2])


def case_an_epoch_of_fit_ends_a_block() -> None:
    """An epoch has six steps, a block four: validation, logs and saved weights are equal on all ranks."""
    asked = Filter(nesterov=True)
    with asked.set():
        program = InFit()
        program.run(0, 6)
        program.run(6, 6)
        wanted = expected(asked, ends=(6, 12))
        assert_same(program.at_ends, [wanted[1], wanted[3]])


def case_a_warm_up() -> None:
    asked = Filter(nesterov=True, warmup=3)
    for make in (InSession, InFunction):
        with subtest(make.__name__), asked.set():
            assert_same(blocks(make(), steps=11, warmup=3), expected(asked, steps=11))


def case_conditions_of_tensorflow_1() -> None:
    asked = Filter(nesterov=True, warmup=3)
    v1.disable_control_flow_v2()
    try:
        with asked.set():
            assert_same(blocks(InSession(), steps=11, warmup=3), expected(asked, steps=11))
    finally:
        v1.enable_control_flow_v2()


def case_two_optimizers() -> None:
    for make in (InSession, InFunction):
        with subtest(make.__name__), Filter().set():
            assert_same(blocks(make(separate=True)), expected(Filter()))


def case_reference_variables() -> None:
    with Filter().set():
        assert_same(blocks(InSession(resource=False)), expected(Filter()))


def case_a_block_that_is_cut_off() -> None:
    asked = Filter(nesterov=True, state="average")
    for make in (InSession, InFunction):
        with subtest(make.__name__), asked.set():
            program, found = make(MOMENTUM), []
            for step in range(10):
                program.run(step)
                if step in (5, 9):
                    tfdist.end_block()
                    tfdist.end_block()  # nothing is open
                if step in (3, 5, 9):
                    found.append({"w": program.values()["w"]})
            wanted = expected(asked, MOMENTUM, steps=10, ends=(6,))
            assert_same(found, [{"w": values["w"]} for values in wanted])


def case_a_monitored_session_ends_a_block() -> None:
    asked = Filter(nesterov=True)
    with asked.set(), tempfile.TemporaryDirectory() as folder:
        program = InSession()
        last = v1.train.StopAtStepHook(last_step=6)
        own = str(Path(folder) / "checkpoints")
        with (
            program.graph.as_default(),
            v1.train.MonitoredTrainingSession(
                checkpoint_dir=own, save_checkpoint_steps=100, hooks=[last], log_step_count_steps=None
            ) as session,
        ):
            for step in range(6):
                session.run(program.step, {program.target: TARGETS[RANK, step], program.rows: LOOKED_UP[RANK, step]})
        saved = {n: tf.train.load_variable(own, n) for n in FIRST}
        assert_same([saved], [expected(asked, steps=6, ends=(6,))[-1]])


def case_a_checkpoint_goes_on_bit_for_bit() -> None:
    """Rank 0 saves after two blocks, and only rank 0 restores the checkpoint in a new program."""
    asked = Filter(nesterov=True, state="average")
    for make in (InSession, InFunction):
        with subtest(make.__name__), asked.set(), tempfile.TemporaryDirectory() as folder:
            program, again = make(MOMENTUM), None
            assert len(blocks(program, steps=2 * BLOCK)) == 2
            path = program.save(str(Path(folder) / "c")) if RANK == 0 else ""
            straight = blocks(program, first=2 * BLOCK)
            again = make(MOMENTUM)
            if RANK == 0:
                again.restore(path)
            found = blocks(again, first=2 * BLOCK)
            np.testing.assert_array_equal(found[0]["w"], straight[0]["w"])
            assert_same([{"w": found[0]["w"]}], [{"w": expected(asked, MOMENTUM)[2]["w"]}])


def case_a_checkpoint_that_rank_0_reads_in_the_middle() -> None:
    """The position in the block comes from rank 0's checkpoint. The ranks agree once, then train locally again."""
    with Filter().set(), tempfile.TemporaryDirectory() as folder:
        program = InSession()
        blocks(program, steps=BLOCK)
        if RANK == 0:
            program.restore(program.save(str(Path(folder) / "c")))
        for step in range(BLOCK, 2 * BLOCK + 1):
            program.run(step)
        program.run(2 * BLOCK + 1)
        own = everywhere(program.values()["w"])
        apart = RATE * ((1 - RATE) * (TARGETS[1] - TARGETS[0])[2 * BLOCK] + (TARGETS[1] - TARGETS[0])[2 * BLOCK + 1])
        np.testing.assert_allclose(own[1] - own[0], apart, rtol=1e-4, err_msg="two steps, each rank by itself")
        program.run(2 * BLOCK + 2)
        program.run(2 * BLOCK + 3)
        ends = everywhere(program.values()["w"])
        assert all(np.array_equal(end, ends[0]) for end in ends), ends


def case_a_model_that_is_saved_goes_on() -> None:
    asked = Filter(nesterov=True, state="average")
    with asked.set(), tempfile.TemporaryDirectory() as folder:
        program, own = InFit(MOMENTUM), str(Path(folder) / "own.keras")
        program.run(0, BLOCK)
        program.model.save(own)
        program.run(BLOCK, BLOCK)
        again = InFit(MOMENTUM)
        again.model = keras.saving.load_model(own, compile=True)
        again.run(BLOCK, BLOCK)
        np.testing.assert_array_equal(again.at_ends[0]["w"], program.at_ends[1]["w"])
        assert_same([{"w": again.at_ends[0]["w"]}], [{"w": expected(asked, MOMENTUM)[1]["w"]}])


def case_one_exchange_a_block() -> None:
    for warmup in (0, 2):
        with subtest(warmup), Filter(warmup=warmup).set():
            program = InSession()
            blocks(program, steps=8 + warmup, warmup=warmup)
            exchanged = [(c.name, c.step) for c in state_of(program.graph).collectives]
            assert [n for _, n in exchanged] == [2] * (len(exchanged)), exchanged
            assert len(exchanged) == 1 + (warmup > 0), exchanged


def case_moving_statistics_are_averaged() -> None:
    with PLAIN.set():
        model = keras.Sequential([keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        x = (np.arange(2 * BLOCK, dtype=np.float32).reshape(-1, 1) + 10) * (RANK + 1)
        model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
        mean = model.layers[0].moving_mean.numpy()
        alone = np.zeros(1)
        for step in range(BLOCK):
            alone = 0.5 * alone + 0.5 * x[2 * step : 2 * step + 2].mean()
        np.testing.assert_allclose(mean, np.mean(everywhere(alone)), rtol=1e-5)


def moved_by_a_script(in_session: bool) -> list[Any]:
    """Return a moving average after a block, and another variable that each step sets."""
    average, last = (tf.Variable(0.0, trainable=False, name=name) for name in ("centre", "last"))
    w, optimizer = tf.Variable(1.0, name="w"), keras.optimizers.SGD(0.1)

    def step() -> Any:
        moving_averages.assign_moving_average(average, RANK + 1.0, 0.5, zero_debias=False)
        last.assign(float(RANK))
        with tf.GradientTape() as tape:
            loss = w * (RANK + 1)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    def train() -> Any:
        moved = moving_averages.assign_moving_average(average, RANK + 1.0, 0.5, zero_debias=False)
        with tf.control_dependencies([moved, last.assign(float(RANK))]):
            return v1.train.GradientDescentOptimizer(0.1).minimize(w * (RANK + 1), var_list=[w])

    if not in_session:
        call = tf.function(step)
        for _ in range(BLOCK):
            call()
        return [average.numpy(), last.numpy()]
    operation = train()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(BLOCK):
            session.run(operation)
        return list(session.run([average, last]))


def case_moving_averages_of_a_script_are_averaged() -> None:
    """As written for TensorFlow 1, under any name; another variable that a step sets stays each rank's own."""
    for in_session in (False, True):
        with subtest(in_session), PLAIN.set(), tf.Graph().as_default() if in_session else contextlib.nullcontext():
            average, last = moved_by_a_script(in_session)
            np.testing.assert_allclose(average, (SIZE + 1) / 2 * (1 - 0.5**BLOCK), rtol=1e-5)
            assert last == RANK


class Lookahead(keras.optimizers.SGD):
    """An optimizer whose slow weights begin as copies of the weights."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.slow = self.add_optimizer_variables(variables, "slow")
        for slow, variable in zip(self.slow, variables, strict=True):
            slow.assign(variable)


def case_slots_that_begin_as_copies() -> None:
    """A reset makes them copies of the new weights again, in a function and at a block that is cut off."""
    makers: list[tuple[Any, str]] = [(lambda: Lookahead(RATE), "slow")]
    if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # since Keras 3.14
        makers.append((keras.optimizers.ScheduleFreeAdamW, "_momentums"))
    for make, name in makers:
        for steps in (BLOCK, 1):
            with subtest(name, steps), PLAIN.set():
                weights = [tf.Variable(FIRST["w"]), tf.Variable(FIRST["e"])]
                optimizer = make()
                optimizer.build(weights)  # before the function, where its assignments would be operations

                @tf.function
                def step() -> None:
                    optimizer.apply_gradients([(w * (RANK + 1), w) for w in weights])  # noqa: B023

                for _ in range(steps):
                    step()
                tfdist.end_block()
                for slot, weight in zip(getattr(optimizer, name), weights, strict=True):
                    np.testing.assert_array_equal(slot, weight)
                    assert np.abs(weight).max() > 0.1 and np.ptp(everywhere(weight.numpy()), axis=0).max() == 0


def case_optimizers_that_hold_others() -> None:
    """Blocks of one step of SGD are the training of one process, with moving averages too."""

    def several() -> Any:
        inner = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        if not hasattr(keras.optimizers, "MultiOptimizer"):  # since Keras 3.15
            return keras.optimizers.LossScaleOptimizer(inner)
        return keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.2), {".*1/.*": inner})
        )

    for state in ("reset", "average"):
        with subtest(state), settings(through_mpi()):
            tfdist.configure(sync="average", block_steps=1, block_state=state)
            assert_fit_law(optimizer=several)


def case_a_loss_scale_optimizer_of_no_blocks_is_loaded() -> None:
    """Blocks add variables to the wrapping optimizer, before those of the wrapped one."""
    with tempfile.TemporaryDirectory() as folder:
        for before, after in ((settings(through_mpi()), Filter().set()), (Filter().set(), PLAIN.set())):
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
            optimizer = keras.optimizers.LossScaleOptimizer(
                keras.optimizers.RMSprop(0.1, momentum=0.9), initial_scale=4.0
            )
            with before:
                model.compile(optimizer, "mse")
                model.fit(np.ones([8, 3]), np.ones([8, 2]) * RANK, batch_size=2, verbose=0)
                tfdist.end_block()
                model.save(f"{folder}/{RANK}.keras")
            with after:
                again = keras.saving.load_model(f"{folder}/{RANK}.keras").optimizer
            assert float(again.dynamic_scale) == 4.0
            for one, other in zip(again.inner_optimizer.variables, optimizer.inner_optimizer.variables, strict=True):
                np.testing.assert_array_equal(one, other)


def case_adam_that_is_reset_is_told() -> None:
    with Filter().set(), captured_log() as lines:
        w = tf.Variable([1.0])
        optimizer = keras.optimizers.Adam(0.1)
        tf.function(lambda: optimizer.apply_gradients([(w * (RANK + 1), w)]))()
    told = [line for line in lines if "up to three times" in line]
    assert len(told) == (RANK == 0), lines


def case_a_checkpoint_of_other_blocks_is_told() -> None:
    path = str(Path(tfdist.broadcast(tempfile.mkdtemp()), "c"))

    def in_session(restores: bool) -> None:
        through_checkpoint(path, restores, lambda: v1.train.GradientDescentOptimizer(0.1))

    with PLAIN.set():
        in_session(False)
    with Filter().set():
        told = refusal(lambda: in_session(True))
        assert "with TFDIST_SYNC 'average', or by one process; it is 'bmuf' now" in told, told
        in_session(False)
    for sync, now in (("average", PLAIN.set()), ("gradients", settings())):
        with now, captured_log() as lines:
            in_session(True)
            told = (
                f"was written with TFDIST_SYNC 'bmuf or diloco', which is {sync!r} now. "
                "Its variables for this setting are not restored"
            )
            assert len([line for line in lines if told in line]) == (RANK == 0), lines


def case_a_checkpoint_inside_a_block_is_told() -> None:
    for make in (InSession, InFunction, InFit):
        with subtest(make.__name__), PLAIN.set(), tempfile.TemporaryDirectory() as folder:
            job_blocks()._told = False
            program, found = make(), []
            with captured_log() as lines:
                if isinstance(program, InFit):
                    save = keras.callbacks.LambdaCallback(
                        on_train_batch_end=lambda batch, logs, p=program: p.model.save(f"{folder}/own.keras")
                    )
                    data = tf.data.Dataset.from_tensor_slices((TARGETS[RANK, :2], LOOKED_UP[RANK, :2].astype(np.int32)))
                    program.model.fit(data, callbacks=[save], verbose=0)
                else:
                    program.run(0)
                    program.save(str(Path(folder) / "c"))
                found = [line for line in lines if "1 steps after the ranks had the same values" in line]
            assert len(found) == (RANK == 0), lines
            tfdist.end_block()


def case_what_blocks_cannot_do_is_refused() -> None:
    w, v = tf.Variable([1.0]), tf.Variable([1.0])

    def train(optimizer: Any, *variables: Any) -> Any:
        def step() -> None:
            optimizer.apply_gradients([(x * (RANK + 1), x) for x in variables])

        return tf.function(step)

    with Filter().set():
        told = refusal(lambda: keras.optimizers.SGD(0.1).apply_gradients([(tf.constant([1.0]), w)]))
        assert "applies gradients eagerly" in told and "tf.function" in told, told
        first, second = train(keras.optimizers.SGD(0.1), w), train(keras.optimizers.SGD(0.1), w)
        first()
        assert "after 1 steps of another optimizer's block" in refusal(second)
        tfdist.end_block()
        train(keras.optimizers.SGD(0.1), w)()
        tfdist.end_block()
        assert "another optimizer has begun to train" in refusal(first)
        assert "give all ranks the same number of steps" in refusal(tfdist.join)
        own = v1.train.GradientDescentOptimizer(0.1)
        train(own, w)()
        assert "an optimizer for each set of variables" in refusal(train(own, w, v))
        tfdist.end_block()
        with tfdist.disable_broadcast():
            assert "lets each rank begin" in refusal(train(keras.optimizers.SGD(0.1), v))
        with tf.Graph().as_default():
            a, b = v1.get_variable("a", initializer=1.0), v1.get_variable("b", initializer=1.0)
            sgd(0).minimize(a * b)
            told = refusal(lambda: sgd(0).minimize(a * a, var_list=[a]))
            assert "a is trained in two places of this graph" in told, told
            local = v1.get_variable("c", initializer=1.0, collections=[v1.GraphKeys.LOCAL_VARIABLES])
            told = refusal(lambda: sgd(0).minimize(local**2, var_list=[local]))
            assert "c is trained in blocks, and is not among the graph's global variables" in told, told
    averaging = keras.optimizers.SGD(0.1)
    with PLAIN.set():
        train(averaging, v)()
        tfdist.end_block()
    with Filter().set():
        assert "make a new optimizer after tfdist.configure" in refusal(train(averaging, v))
    function = train(keras.optimizers.SGD(0.1), v)
    with Filter().set():
        for _ in range(BLOCK - 1):
            function()
    with settings():
        tfdist.configure(sync="average", block_steps=BLOCK)
        told = refusal(function)
        assert "has set sync to 'average'" in told, told


def case_what_one_rank_does_alone_has_no_blocks() -> None:
    with Filter().set():
        w = tf.Variable([1.0])
        with tfdist.alone("its own"):
            keras.optimizers.SGD(0.5).apply_gradients([(tf.constant([RANK + 1.0]), w)])
            assert "all ranks must end it" in refusal(tfdist.end_block)
        np.testing.assert_allclose(w.numpy(), [1 - 0.5 * (RANK + 1)])


def case_diloco_is_bmuf_with_its_numbers() -> None:
    """The same bits; and each number that is given replaces the default, also if it is BMUF's default."""

    def trained(**given: Any) -> list[Values]:
        with settings(through_mpi()):
            tfdist.configure(block_steps=BLOCK, **given)
            return blocks(InSession(MOMENTUM))

    numbers = {"block_momentum": 0.9, "block_learning_rate": 0.7, "block_nesterov": True, "block_state": "keep"}
    for name, other in (
        (None, None),
        ("block_learning_rate", 1.0),
        ("block_nesterov", False),
        ("block_state", "reset"),
    ):
        more = {} if name is None else {name: other}
        with subtest(more):
            found, wanted = trained(sync="diloco", **more), trained(sync="bmuf", **{**numbers, **more})
            assert_bits(found, wanted)
    # The scale of Chen and Huo: C = rate / (ranks * (1 - momentum)).
    found = trained(sync="bmuf", block_momentum=0.5, block_scale=1.5)
    assert_bits(found, trained(sync="bmuf", block_momentum=0.5, block_learning_rate=1.5 * SIZE * 0.5))


def assert_bits(found: list[Values], wanted: list[Values]) -> None:
    for one, another in zip(found, wanted, strict=True):
        for variable, value in one.items():
            np.testing.assert_array_equal(value, another[variable])
