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
