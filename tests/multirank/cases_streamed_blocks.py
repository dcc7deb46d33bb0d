"""Blocks whose fragments are exchanged in turn, with a delay, and in few bits, against a computation in NumPy."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import refusal
from tests.multirank.inside import captured_log, everywhere, job_blocks, nodes, settings, through_mpi
from tests.multirank.oracle import SavedFunction, SavedGraph, each, v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()
STEPS, RATE = 26, 0.1
# Larger than what travels with the ranks' arrival, which no format changes.
SHAPES = {"in/kernel": (190, 80), "in/bias": (8,), "middle/kernel": (15001,), "out/kernel": (150, 100)}
NAMES = tuple(SHAPES)
# The largest layer goes first, then the next one to the smallest fragment: the others have about the same size.
OF_FRAGMENTS: dict[int, list[tuple[str, ...]]] = {
    1: [NAMES],
    2: [("in/kernel", "in/bias"), ("middle/kernel", "out/kernel")],
    3: [("in/kernel", "in/bias"), ("middle/kernel",), ("out/kernel",)],
}
Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Streamed:
    """Settings of tfdist and of the oracle."""

    sync: str = "diloco"
    steps: int = 6
    fragments: int = 1
    delay: int = 0
    alpha: float = 0.5
    compression: str = "none"
    warmup: int = 0

    @contextlib.contextmanager
    def set(self) -> Iterator[None]:
        with settings(through_mpi()):
            tfdist.configure(
                sync=self.sync, block_steps=self.steps, block_fragments=self.fragments, block_delay=self.delay,
                block_alpha=self.alpha, compression=self.compression, block_warmup=self.warmup, block_state="keep",
            )  # fmt: skip
            yield

    @property
    def numbers(self) -> tuple[float, float, bool]:
        """Momentum, learning rate and Nesterov."""
        return {"diloco": (0.9, 0.7, True), "average": (0.0, 1.0, False), "bmuf": (1 - 1 / SIZE, 1.0, False)}[self.sync]


def targets(rank: int, step: int) -> Values:
    random = np.random.RandomState(1000 * rank + step)
    return {n: (random.randn(*shape) * np.exp(random.randn(*shape))).astype(np.float32) for n, shape in SHAPES.items()}


FIRST: Values = {n: np.full(shape, 1 + k, np.float32) for k, (n, shape) in enumerate(SHAPES.items())}


def expected(asked: Streamed, steps: int = STEPS, ends: tuple[int, ...] = ()) -> list[list[Values]]:
    """Return the values of each rank after each step; ``ends``: steps after which blocks are ended."""
    momentum, rate, nesterov = asked.numbers
    ranks: list[Any] = [{n: v.astype(np.float64) for n, v in FIRST.items()} for _ in range(SIZE)]
    start = {n: v.astype(np.float64) for n, v in FIRST.items()}
    last: dict[str, Any] = {n: np.zeros_like(v) for n, v in start.items()}
    flying: Any = None
    between = asked.steps // asked.fragments
    done = -asked.warmup
    found: list[list[Values]] = []

    def difference(names: tuple[str, ...]) -> Values:
        return {n: np.mean([values[n] - start[n] for values in ranks], axis=0) for n in names}

    def merge(changes: Values, alpha: float) -> None:
        for n, change in changes.items():
            last[n] = momentum * last[n] + rate * change
            start[n] = start[n] + (rate * change + momentum * last[n] if nesterov else last[n])
            for values in ranks:
                values[n] = alpha * values[n] + (1 - alpha) * start[n]

    for step in range(steps):
        own: list[Any] = [{n: values[n] - targets(rank, step)[n] for n in NAMES} for rank, values in enumerate(ranks)]
        if done < 0:
            own = [{n: np.mean([g[n] for g in own], axis=0) for n in NAMES}] * SIZE
        for values, gradients in zip(ranks, own, strict=True):
            for n in NAMES:
                values[n] = values[n] - RATE * gradients[n]
        done += 1
        if done == 0:
            start.update(dict(ranks[0]))
        if flying is not None and done == flying[0] + asked.delay:
            merge(flying[1], asked.alpha)
            flying = None
        if done > 0 and done % between == 0:
            names = OF_FRAGMENTS[asked.fragments][(done // between - 1) % asked.fragments]
            if asked.delay:
                flying = done, difference(names)
            else:
                merge(difference(names), 0.0)
        if step + 1 in ends:
            if flying is not None:
                merge(flying[1], asked.alpha)
            merge(difference(NAMES), 0.0)
            flying, done = None, 0
        found.append([dict(values) for values in ranks])
    return found


Program = Any


class InSession(SavedGraph):
    """A graph of TensorFlow 1."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            values = {n: v if RANK == 0 else v + 7 for n, v in FIRST.items()}  # rank 0's values are broadcast
            self.variables = {n: v1.get_variable(n, initializer=v, use_resource=True) for n, v in values.items()}
            self.given = {n: v1.placeholder(tf.float32, shape) for n, shape in SHAPES.items()}
            loss = tf.add_n([tf.reduce_sum((self.variables[n] - self.given[n]) ** 2) / 2 for n in NAMES])
            self.step = v1.train.GradientDescentOptimizer(RATE).minimize(loss)
            self.saver = v1.train.Saver()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def run(self, step: int) -> None:
        self.session.run(self.step, {self.given[n]: value for n, value in targets(RANK, step).items()})


class InFunction(SavedFunction):
    """A tape in a function."""

    def __init__(self) -> None:
        self.variables = {n: tf.Variable(v if RANK == 0 else v + 7, name=n) for n, v in FIRST.items()}
        self.optimizer = keras.optimizers.SGD(RATE)
        self.checkpoint = tf.train.Checkpoint(
            optimizer=self.optimizer, **{n.replace("/", "_"): v for n, v in self.variables.items()}
        )

        @tf.function
        def train(given: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum((self.variables[n] - given[n]) ** 2) / 2 for n in NAMES])
            variables = list(self.variables.values())
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        self.train = train

    def run(self, step: int) -> None:
        self.train({n: tf.constant(value) for n, value in targets(RANK, step).items()})


class InFit:
    """A model of Keras 3, one step in each call of ``fit``'s function."""

    def __init__(self) -> None:
        self.model = _Model()
        self.model.compile(optimizer=keras.optimizers.SGD(RATE))

    def run_all(self, steps: int) -> list[Values]:
        """Train one epoch, and return the values after each step and at the epoch's end, where blocks are ended."""
        found: list[Values] = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: found.append(self.model.values()),
            on_epoch_end=lambda epoch, logs: found.append(self.model.values()),
        )
        given = {n: np.stack([targets(RANK, step)[n] for step in range(steps)]) for n in NAMES}
        self.model.fit(tf.data.Dataset.from_tensor_slices(given), callbacks=[note], verbose=0)
        return found


class _Model(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.parts = {layer: keras.layers.Layer(name=layer) for layer in ("in", "middle", "out")}
        self.all = {}
        for n, value in FIRST.items():
            layer, name = n.split("/")
            first = value if RANK == 0 else value + 7
            make = self.parts[layer].add_weight
            self.all[n] = make(shape=value.shape, initializer=lambda *a, v=first, **k: v, name=name)
        for part in self.parts.values():
            part.built = True
        self.built = True

    def values(self) -> Values:
        return {n: variable.numpy() for n, variable in self.all.items()}

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum((self.all[n].value - data[n]) ** 2) / 2 for n in NAMES])
        variables = [self.all[n] for n in NAMES]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


MAKES: tuple[Program, ...] = (InSession, InFunction)


def assert_near(found: list[Values], wanted: list[list[Values]], first: int = 0) -> None:
    """Compare with this rank's values after each step."""
    assert len(found) == len(wanted), (len(found), len(wanted))
    for step, (one, ranks) in enumerate(zip(found, wanted, strict=True), first):
        for n, value in ranks[RANK].items():
            np.testing.assert_allclose(one[n], value, 5e-5, 5e-5, err_msg=f"{n} after step {step + 1}")


def trained(program: Program, first: int = 0, steps: int = STEPS, ends: tuple[int, ...] = ()) -> list[Values]:
    found = []
    for step in range(first, steps):
        program.run(step)
        if step + 1 in ends:
            tfdist.end_block()
        found.append(program.values())
    return found


ASKED = (
    Streamed(fragments=2),
    Streamed(fragments=3, sync="bmuf"),
    Streamed(delay=2),
    Streamed(delay=6, alpha=0.25),
    Streamed(fragments=3, delay=2, alpha=0.0),
    Streamed(fragments=2, delay=1, sync="average", alpha=1.0),
    Streamed(fragments=3, delay=1, warmup=3),
)


def case_each_step_is_that_of_the_formula() -> None:
    for make, asked in each(MAKES, ASKED):
        with subtest(make.__name__, asked), asked.set():
            ends = (14, 23)
            assert_near(trained(make(), ends=ends), expected(asked, ends=ends))
            tfdist.end_block()


def case_fit() -> None:
    for asked in (Streamed(fragments=2), Streamed(fragments=2, delay=3)):
        with subtest(asked), asked.set():
            found = InFit().run_all(15)
            assert_near(found[:-1], expected(asked, 15))
            assert_near(found[-1:], expected(asked, 15, ends=(15,))[-1:])
            ends = everywhere(found[-1])
            assert all(np.array_equal(end[n], ends[0][n]) for end in ends for n in NAMES)


def case_one_fragment_without_delay_is_a_block() -> None:
    """The same bits, and nothing is different from blocks without the settings."""
    found = []
    every: tuple[dict[str, Any], ...] = ({}, {"block_fragments": 1, "block_delay": 0})
    for more in every:
        with settings(through_mpi()):
            tfdist.configure(sync="diloco", block_steps=5, **more)
            found.append(trained(InSession()))
    for one, another in zip(*found, strict=True):
        assert all(np.array_equal(one[n], another[n]) for n in NAMES)


def case_few_bits_lose_nothing_for_long() -> None:
    """Changes are repaired by the next exchanges, and ``end_block`` sends what is left: then all is exact again.

    Between machines only: on one machine the formats change nothing.
    """
    for make, compression in each(MAKES, ("int8", "int4", "int2", "bf16")):
        for asked in (Streamed("average", 2, compression=compression), Streamed("diloco", 4, 2, 1, 0.5, compression)):
            with subtest(make.__name__, asked), asked.set():
                program = make()
                found = trained(program, steps=20)
                exact = expected(dataclasses.replace(asked, compression="none"), 20)
                apart = max(np.abs(found[-1][n] - exact[-1][RANK][n]).max() for n in NAMES)
                lossy = compression == "bf16" or nodes() > 1
                # Rounding is a share of the largest change, which reaches 50 here; with int2 of the mean.
                assert (apart > 1e-4) == lossy and apart < (10 if compression == "int2" else 1), apart
                tfdist.end_block()
                ends = everywhere(program.values())
                assert all(np.array_equal(end[n], ends[0][n]) for end in ends for n in NAMES)
                assert not job_blocks_keep_back()


def case_the_sum_over_100_blocks_is_exact_within_one_rounding() -> None:
    """Each step changes the variables by known numbers, 100 times. A last block of three steps is open then."""
    for compression, steps in (("int4", 1), ("int2", 1), ("int4", 3)):
        with subtest(compression, steps), settings(through_mpi()):
            tfdist.configure(sync="average", block_steps=steps, compression=compression, block_state="keep")
            variable = tf.Variable(tf.zeros([30_000]), name="w")
            optimizer = keras.optimizers.SGD(1.0)
            step = tf.function(lambda change, v=variable, o=optimizer: o.apply_gradients([(-change, v)]))
            changes = [
                [np.random.RandomState(100 * n + rank).randn(30_000).astype(np.float32) for n in range(100)]
                for rank in range(SIZE)
            ]
            for change in changes[RANK]:
                step(tf.constant(change))
            total = np.mean(np.sum(changes, axis=1, dtype=np.float64), axis=0)
            most, levels = max(np.abs(change).max() for own in changes for change in own), {"int4": 14, "int2": 0.25}
            # Two roundings: that of a machine's sum, and that of the sum of all machines.
            left = np.abs(variable.numpy() - total).max()
            assert steps > 1 or left <= 3 * most / levels[compression] + 1e-3, (left, most)
            tfdist.end_block()
            np.testing.assert_allclose(variable.numpy(), total, atol=2e-3)


def case_a_request_to_stop_is_heard_after_the_same_step() -> None:
    """An exchange brings it early, on another thread; it counts where the result is merged."""
    for make in MAKES:
        with subtest(make.__name__), Streamed(delay=3).set():
            program, heard = make(), []
            for step in range(10):
                if step == 2 and RANK == SIZE - 1:
                    tfdist.ask_to_stop()
                program.run(step)
                time.sleep(0.1 * (RANK == 0 and step in (6, 7)))  # this rank sees what has come before the others
                heard.append(tfdist.asked_to_stop())
            assert heard == [False] * 8 + [True] * 2, heard
            tfdist.end_block()
        tfdist.ask_to_stop(False)


def case_a_checkpoint_goes_on_bit_for_bit() -> None:
    """After ``end_block`` a checkpoint has everything: no exchange is in flight, and no rounding error is kept back."""
    for make, asked in each(
        MAKES, (Streamed(fragments=3, delay=2), Streamed(fragments=2, delay=3, compression="int2"))
    ):
        with subtest(make.__name__, asked), asked.set(), tempfile.TemporaryDirectory() as folder:
            program = make()
            trained(program, steps=11, ends=(11,))
            path = program.save(str(Path(folder) / "c")) if RANK == 0 else ""
            straight = trained(program, 11)
            tfdist.end_block()
            again = make()
            if RANK == 0:
                again.restore(path)
            found = trained(again, 11)
            for one, another in zip(found, straight, strict=True):
                for n in NAMES:
                    np.testing.assert_array_equal(one[n], another[n])
            tfdist.end_block()


def case_a_checkpoint_in_the_middle_is_told_and_goes_on() -> None:
    """An exchange that was in flight is not in the checkpoint: all ranks continue without it, in step."""
    asked = Streamed(fragments=2, delay=3)
    for make in MAKES:
        with subtest(make.__name__), asked.set(), tempfile.TemporaryDirectory() as folder:
            job_blocks()._told = False
            program = make()
            trained(program, steps=4)
            with captured_log() as lines:
                path = program.save(str(Path(folder) / "c"))
            told = [line for line in lines if "4 steps after the ranks had the same values" in line]
            assert len(told) == (RANK == 0), lines
            tfdist.end_block()
            again = make()
            again.restore(path)
            trained(again, 4)
            tfdist.end_block()
            ends = everywhere(again.values())
            assert all(np.array_equal(end[n], ends[0][n]) for end in ends for n in NAMES)


def case_another_session_begins_anew() -> None:
    """What was in flight in the first session is not merged in the second one, which begins inside a block."""
    with Streamed(delay=3).set(), tempfile.TemporaryDirectory() as folder:
        program = InSession()
        trained(program, steps=7)  # an exchange has begun after step 6
        path = program.save(str(Path(folder) / "c"))
        before = program.values()
        with program.graph.as_default():
            program.session = v1.Session()
        program.restore(path)
        trained(program, first=7, steps=9)  # it would be merged after step 9
        wanted = everywhere(before)[0]
        for step in (7, 8):
            wanted = {n: value - RATE * (value - targets(RANK, step)[n]) for n, value in wanted.items()}
        for n, value in program.values().items():
            np.testing.assert_allclose(value, wanted[n], 1e-4, 1e-5)
        tfdist.end_block()


def case_rounding_errors_at_a_checkpoint_are_told() -> None:
    with Streamed(steps=2, compression="int4").set(), tempfile.TemporaryDirectory() as folder, captured_log() as lines:
        job_blocks()._told = False
        program = InSession()
        trained(program, steps=2)
        program.save(str(Path(folder) / "c"))
        told = [line for line in lines if "while each rank keeps rounding errors of int4" in line]
        assert len(told) == (RANK == 0 and nodes() > 1), lines
        tfdist.end_block()
        job_blocks()._told = False
        with captured_log() as lines:
            program.save(str(Path(folder) / "c"))
        assert not [line for line in lines if "rounding" in line], lines


def _first_step(make: Program) -> None:
    make().run(0)


def case_ranks_that_differ_are_told() -> None:
    """A rank's own numbers would leave the ranks apart, or make them exchange after different steps."""
    for name, value in (
        *(("block_momentum", 0.5), ("block_learning_rate", 0.5), ("block_nesterov", False), ("block_steps", 12)),
        *(("block_fragments", 3), ("block_delay", 1), ("block_alpha", 0.75), ("compression", "bf16")),
    ):
        common: dict[str, Any] = {"block_steps": 6, "block_fragments": 2, "block_delay": 2}
        for make in MAKES:
            with subtest(name, make.__name__), settings(through_mpi()):
                tfdist.configure(sync="diloco", **common | ({name: value} if RANK == SIZE - 1 else {}))
                told = refusal(functools.partial(_first_step, make))
                assert "rank" in told and name.removeprefix("block_") in told or "bfloat16" in told, told


def case_what_does_not_fit_is_refused() -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"block_steps": 4, "block_fragments": 8}, "block_steps is 4, but block_fragments is 8"),
        ({"block_steps": 10, "block_fragments": 4}, "Set a multiple of 4, for example 12 steps"),
        ({"block_steps": 8, "block_fragments": 4, "block_delay": 3}, "Set a delay of at most 2"),
        ({"block_steps": 8, "block_momentum": 1.0}, "a number from 0 to below 1"),
        ({"block_steps": 8, "block_fragments": 2, "block_state": "reset"}, "set block_state=keep"),
    )
    for given, told in wrong:
        with settings():
            found = refusal(functools.partial(tfdist.configure, sync="diloco", **given))
            assert told in found, (told, found)
    with settings():
        told = refusal(lambda: tfdist.configure(compression="int2"))
        assert "TFDIST_COMPRESSION is 'int2', and TFDIST_SYNC is 'gradients'" in told and "int8" in told, told
    with Streamed(steps=8, fragments=4).set():
        assert "trained variables are in 3 layers" in refusal(InSession)


def job_blocks_keep_back() -> bool:
    return any(state.keeps_back for state in job_blocks()._states.values())
