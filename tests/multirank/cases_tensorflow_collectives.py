"""TensorFlow's collectives: groups, threads, and functions that XLA compiles; the ranks meet before each call of these.

XLA compiles collectives only for GPUs. So the tests build a function as for XLA, and TensorFlow's ring executes it.
Another test checks the program that XLA compiles, without executing it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.inside import everywhere, job, settings
from tests.named import subtest
from tfdist import extend
from tfdist.compat import collective_ops
from tfdist.graph import function_state
from tfdist.graph.tensorflow_collectives import TensorFlowCollectives


def _in_order(tensor: Any, after: Any) -> Any:
    with tf.control_dependencies([after]):
        return tf.identity(tensor)


def _compiled() -> str:
    """Treat a function as compiled if its name says so."""
    graph = tf.compat.v1.get_default_graph()
    while function_state.is_of_function(graph):
        if "compiled" in graph.name:
            return "compiled"
        graph = graph.outer_graph
    return ""


@contextlib.contextmanager
def as_for_xla() -> Iterator[TensorFlowCollectives]:
    """Build functions that are traced in this context as for XLA; TensorFlow executes them."""
    exchange = job().switches.exchange
    assert isinstance(exchange, TensorFlowCollectives)
    with (
        mock.patch.object(exchange, "compiled", True),
        mock.patch.object(function_state, "compiled", _compiled),
        mock.patch.object(collective_ops, "in_order", _in_order),
    ):
        yield exchange


def _batch(number: int) -> np.ndarray:
    """Return the batches of all ranks in one step, [size, 6, 3]."""
    return np.random.RandomState(number).randn(tfdist.size(), 6, 3).astype(np.float32)


def _expected(steps: int, rate: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Return the variables that one process gets."""
    w, b = np.zeros((3, 2)), np.zeros(2)
    for number in range(steps):
        x = _batch(number).reshape(-1, 3).astype(np.float64)
        error = x @ w + b - x[:, :2]
        w, b = w - rate * 2 * x.T @ error / error.size, b - rate * 2 * error.sum(0) / error.size
    return w, b


def _own(number: int) -> Any:
    return tf.constant(_batch(number)[tfdist.rank()])


def _step(w: Any, b: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w + b - x[:, :2]) ** 2)
    gradients = tape.gradient(loss, [w, b])
    v1 = tf.compat.v1
    v1.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, [w, b], strict=True))
    return loss


def _assert_trained(w: Any, b: Any, steps: int) -> None:
    for found, expected in zip((w, b), _expected(steps), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def case_the_law_in_a_compiled_function() -> None:
    with as_for_xla():
        for bucket_mb in (64, 1e-5):
            with subtest(bucket_mb), settings(bucket_mb=bucket_mb):
                w, b = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([2]))

                @tf.function
                def compiled(x: Any, w: Any = w, b: Any = b) -> Any:
                    return _step(w, b, x)

                for number in range(4):
                    compiled(_own(number))
                _assert_trained(w, b, 4)
                graph = compiled.get_concrete_function(_own(0)).graph
                assert not [op for op in graph.get_operations() if "PyFunc" in op.type]


def case_a_compiled_function_inside_another_one() -> None:
    """The ranks meet in the outer function before each call of the inner one, also in a loop."""
    with as_for_xla():
        w, b = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([2]))

        @tf.function
        def compiled_inside(x: Any) -> Any:
            return _step(w, b, x)

        @tf.function
        def compiled(x: Any) -> Any:
            return compiled_inside(x)

        @tf.function
        def steps(batches: Any) -> Any:
            for x in batches:
                compiled(x)
            return compiled_inside(_own(3))

        steps(tf.stack([_own(number) for number in range(3)]))
        _assert_trained(w, b, 4)


def _asked_for_xla(model: Any) -> bool:
    seen: list[Any] = []

    def function(*args: Any, **given: Any) -> Any:
        seen.append(given.get("jit_compile"))
        return args[0] if args else lambda python_function: python_function

    with mock.patch.object(tf, "function", function):
        model.make_train_function()
    return any(seen)


def case_fit_keeps_xla() -> None:
    """``fit`` uses XLA if the script asks for it and the exchange can be compiled, not if data pass the host."""
    exchange = job().switches.exchange
    for compiled in (True, False):
        with mock.patch.object(exchange, "compiled", compiled):
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
            model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
            assert _asked_for_xla(model) == compiled
            with settings(loss_scale="backoff"):
                assert not job().compiles


def case_rows_of_an_embedding() -> None:
    """Slices stay slices: the ranks' rows one after the other, as in one process."""
    expected = np.zeros([5, 2])
    for rank in range(tfdist.size()):
        for row in (0, 3, 3, rank):
            expected[row] -= 2 * (rank + 1) / tfdist.size()

    def train(shape: list[int | None]) -> Any:
        table, other = tf.Variable(tf.zeros([5, 2])), tf.Variable(tf.zeros([2]))

        @tf.function(input_signature=[tf.TensorSpec(shape, tf.int32)])
        def compiled(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids) * (tfdist.rank() + 1.0) + other)
            gradients = tape.gradient(loss, [table, other])
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            optimizer.apply_gradients(zip(gradients, [table, other], strict=True))
            return loss

        for _ in range(2):
            compiled(np.array([0, 3, 3, tfdist.rank()], np.int32))
        return table

    with as_for_xla():
        for rows in (4, None):
            with subtest(rows):
                np.testing.assert_allclose(train([rows]).numpy(), expected, rtol=1e-6)


_VOCABULARY = 9


def _ids(step: int, rank: int) -> np.ndarray:
    """Return a rank's rows of one step: some twice, and another number on each rank; none on some."""
    if (step + rank) % 3 == 2:
        return np.zeros(0, np.int64)
    return np.random.RandomState(10 * step + rank).randint(0, _VOCABULARY, 3 + rank + step)


def _rows_trained(steps: int, momentum: float) -> np.ndarray:
    """Return the table after ``steps``: only touched rows move, with their momentum."""
    table, velocity = np.zeros((_VOCABULARY, 2)), np.zeros((_VOCABULARY, 2))
    for step in range(steps):
        total = np.zeros_like(table)
        for rank in range(tfdist.size()):
            np.add.at(total, _ids(step, rank), (rank + 1.0) / tfdist.size())
        touched = np.unique(np.concatenate([_ids(step, rank) for rank in range(tfdist.size())]))
        velocity[touched] = momentum * velocity[touched] + total[touched]
        table[touched] -= velocity[touched]
    return table


def _look_up(tables: Any, ids: Any) -> Any:
    return tf.add_n([tf.reduce_sum(tf.cast(tf.gather(t, ids), tf.float32)) for t in tables]) * (tfdist.rank() + 1.0)


def case_rows_stay_on_the_device() -> None:
    """Only indices pass the host; each row that a rank touches is averaged once, so that its momentum moves once."""
    steps = 5
    expected = _rows_trained(steps, 0.9)
    v1 = tf.compat.v1

    def tables() -> list[Any]:
        return [tf.Variable(np.zeros([_VOCABULARY, 2], dtype)) for dtype in ("float32", "float64", "float32")]

    def step(own: Any, ids: Any, optimizer: Any) -> None:
        with tf.GradientTape() as tape:
            loss = _look_up(own, ids)
        optimizer.apply_gradients(zip(tape.gradient(loss, own), own, strict=True))

    for name in ("function", "eager", "half precision"):
        with subtest(name), settings(compression="bf16" if name == "half precision" else "none"):
            own, optimizer = tables(), v1.train.MomentumOptimizer(1.0, 0.9)
            run: Any = step if name == "eager" else tf.function(step, reduce_retracing=True)
            for number in range(steps):
                run(own, tf.constant(_ids(number, tfdist.rank())), optimizer)
            for table in own:
                wire = 2e-2 if name == "half precision" and table.dtype == tf.float32 else 1e-6
                np.testing.assert_allclose(table.numpy(), expected, rtol=wire, atol=wire)
            if name != "eager":
                _assert_indices_alone(run.get_concrete_function(own, tf.constant(_ids(1, 0)), optimizer).graph)
    with subtest("session"), tf.Graph().as_default() as graph, v1.Session() as session:
        own = [v1.get_variable(f"t{n}", [_VOCABULARY, 2], initializer=v1.zeros_initializer()) for n in range(2)]
        ids = v1.placeholder(tf.int64, [None])
        train = v1.train.MomentumOptimizer(1.0, 0.9).minimize(_look_up(own, ids))
        session.run(v1.global_variables_initializer())
        for number in range(steps):
            session.run(train, {ids: _ids(number, tfdist.rank())})
        for table in session.run(own):
            np.testing.assert_allclose(table, expected, rtol=1e-6, atol=1e-6)
        _assert_indices_alone(graph)
        if tfdist.rank():  # told with the next step, whose rows are rank 0's alone
            own[0].load(np.full([_VOCABULARY, 2], 9.0), session)
        for number in range(2):
            session.run(train, {ids: _ids(number, tfdist.rank())})
        for table in session.run(own):
            assert all(np.array_equal(table, other) for other in tfdist.all_gather(table[None]))


def _assert_indices_alone(graph: Any) -> None:
    calls = [op for op in graph.get_operations() if op.type in ("PyFunc", "EagerPyFunc")]
    given = [t for op in calls if "broadcast" not in op.name for t in op.inputs]
    assert given and all(t.dtype == tf.int64 for t in given), given


def case_rows_that_stay_unmerged() -> None:
    """The optimizer gets the rows of all ranks, one rank after the other, as one process has them."""
    with settings(sparse="unmerged"):
        table = tf.Variable(tf.zeros([_VOCABULARY, 2]))

        @tf.function
        def averaged(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = _look_up([table], ids)
            return tape.gradient(loss, table)

        for number in range(3):
            found = averaged(tf.constant(_ids(number, tfdist.rank())))
            every = [_ids(number, rank) for rank in range(tfdist.size())]
            np.testing.assert_array_equal(found.indices, np.concatenate(every))
            weights = np.concatenate([np.full(len(ids), rank + 1.0) for rank, ids in enumerate(every)])
            np.testing.assert_allclose(found.values, np.stack([weights, weights], 1) / tfdist.size(), rtol=1e-6)


def case_other_sizes_on_one_rank_are_told() -> None:
    """XLA's shapes are fixed, so all ranks must have the same number of rows; a difference is reported."""
    with as_for_xla():
        table = tf.Variable(tf.zeros([5, 2]))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
        def compiled(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids))
            tf.compat.v1.train.GradientDescentOptimizer(1.0).apply_gradients([(tape.gradient(loss, table), table)])
            return loss

        with pytest.raises(Exception, match="bytes"):
            compiled(np.zeros(4 + (tfdist.rank() == 0), np.int32))
    assert len(everywhere(True)) == tfdist.size()


def case_a_loop_in_a_compiled_function_is_refused() -> None:
    with as_for_xla():
        w, b = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([2]))

        @tf.function
        def compiled(batches: Any) -> None:
            for x in batches:
                _step(w, b, x)

        with pytest.raises(RuntimeError, match="in a condition or a loop.*Put the loop outside of the function"):
            compiled(tf.stack([_own(0), _own(1)]))


class _OfSome:
    """A reducer that averages over some ranks."""

    def __init__(self, ranks: list[int]) -> None:
        self.group = job().world.group(ranks)

    def reduce(self, gradients: Any, names: Any, group: Any) -> Any:
        del group
        return extend.average().reduce(gradients, names, self.group)


def case_an_average_over_some_ranks() -> None:
    """The average over a group, also a second group of all ranks, which has its own exchanges."""
    everyone = list(range(tfdist.size()))
    for ranks in (everyone[tfdist.rank() % 2 :: 2], everyone, everyone):
        with subtest(ranks):
            reducer = _OfSome(ranks)
            w = tf.Variable(tf.zeros([3]))

            @tf.function
            def step(w: Any = w) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(w * (tfdist.rank() + 1.0))
                w.assign_sub(tape.gradient(loss, w))

            with mock.patch.object(job().switches, "reducer", reducer):
                for _ in range(2):
                    step()
            np.testing.assert_allclose(w.numpy(), -2 * np.mean([rank + 1.0 for rank in ranks]))
            ops = step.get_concrete_function().graph.get_operations()
            assert len([op for op in ops if op.type == "CollectiveReduceV2"]) == 1


def case_steps_leave_no_threads() -> None:
    w = tf.Variable(tf.zeros([3]))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * 1.0)
        w.assign_sub(tape.gradient(loss, w))

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    for _ in range(20):
        step()
    before = threads()
    for _ in range(50):
        step()
    assert threads() < before + 20


def case_what_xla_makes_of_it() -> None:
    """The compiled program has all sums, each one after the one before."""
    exchange = job().switches.exchange
    with mock.patch.object(exchange, "compiled", True), mock.patch.object(exchange, "_nccl", True):
        w, b = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([2]))

        @tf.function(jit_compile=True)
        def step(x: Any) -> Any:
            return _step(w, b, x)

        with settings(bucket_mb=1e-5):
            program = step.experimental_get_compiler_ir(_own(0))(stage="hlo")
        assert len(re.findall(r"= f32\[\d+\][^ ]* all-reduce\(", program)) == 2, program
        assert "opt-barrier" in program
