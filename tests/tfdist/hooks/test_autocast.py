"""Half-precision products in the graph: what is converted, and where. Multi-rank cases check the values."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.launch import run
from tfdist.hooks import autocast

v1 = tf.compat.v1
STEPS = 4


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Configure bfloat16 as on a processor that computes with it; switch it off after the test."""
    monkeypatch.setattr(autocast, "_computes", lambda _: True)
    tfdist.configure(mixed_precision="bf16")
    yield
    tfdist.configure(mixed_precision="none")


def powers(kernel: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Return ``start`` times STEPS kernels, in a loop."""
    wanted = lambda count, _: count < STEPS  # noqa: E731
    return tf.while_loop(wanted, lambda count, x: (count + 1, x @ kernel), [tf.constant(0), start])[1]


def conversions_in_loops(graph: Any, source: tf.Tensor) -> int:
    """Return the number of conversions of a tensor inside loops, where every turn repeats them."""
    bodies = [graph, *(function.graph for function in graph._functions.values() if hasattr(function, "graph"))]
    casts = [op for body in bodies for op in body.get_operations() if op.type == "Cast"]
    inside = [op for op in casts if op.graph is not graph or op._get_control_flow_context() is not None]
    return sum(one.inputs[0].shape == source.shape for one in inside)


def test_without_onednn_products_are_float32s_and_that_is_told() -> None:
    script = """
    import tensorflow as tf
    import tfdist
    with tf.Graph().as_default() as graph:
        tf.ones([2, 3]) @ tf.ones([3, 2])
    print([op.get_attr("T").name for op in graph.get_operations() if op.type == "MatMul"])
    """
    variables = {"TF_ENABLE_ONEDNN_OPTS": "0", "TFDIST_MIXED_PRECISION": "bf16"}
    done = run([sys.executable, "-c", inspect.cleandoc(script)], 60, variables)
    assert done.output == "['float32']\n", done.errors
    assert "TensorFlow without oneDNN, computes no products of bfloat16: they are float32's" in done.errors


def test_what_is_made_inside_a_loop_is_converted_there() -> None:
    """Also in the loop of its derivative, a graph that is not inside the loop's graph."""

    def body(count: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        kernel = tf.stop_gradient(tf.eye(7) * tf.cast(count + 1, tf.float32))

        @tf.custom_gradient
        def product(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return x @ kernel, lambda upstream: tf.matmul(upstream, kernel, transpose_b=True)

        return count + 1, product(x)

    @tf.function
    def slope(start: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(start)
            loss = tf.reduce_sum(tf.while_loop(lambda count, _: count < STEPS, body, [tf.constant(0), start])[1])
        return tape.gradient(loss, start)

    np.testing.assert_array_equal(slope(tf.ones([2, 7])), np.full([2, 7], 24.0))  # 4!


@pytest.mark.parametrize("second_version", (False, True))
def test_a_loop_converts_once_what_it_has_no_gradient_of(second_version: bool) -> None:
    """With a gradient, the sums over the turns are float32, so that each turn converts."""
    values = np.random.RandomState(1).randn(7, 7).astype(np.float32)
    switch = v1.enable_control_flow_v2 if second_version else v1.disable_control_flow_v2
    before = v1.control_flow_v2_enabled()
    switch()
    try:
        for fixed in (False, True):
            with tf.Graph().as_default() as graph, v1.Session() as session:
                variable = v1.get_variable("kernel", initializer=values)
                kernel = variable.read_value()
                kernel = tf.stop_gradient(kernel) if fixed else kernel
                x = v1.placeholder(tf.float32, [2, 7])
                result = powers(kernel, x)
                (gradient,) = tf.gradients(result, [x])
                session.run(v1.global_variables_initializer())
                found, slope = session.run([result, gradient], {x: values[:2]})
            assert (conversions_in_loops(graph, kernel) == 0) == fixed
            exact = values[:2]
            for _ in range(STEPS):
                exact = exact @ values
            np.testing.assert_allclose(found, exact, atol=0.03 * np.abs(exact).max())
            assert np.abs(found - exact).max() > 1e-4
            assert np.isfinite(slope).all()
    finally:
        (v1.enable_control_flow_v2 if before else v1.disable_control_flow_v2)()
