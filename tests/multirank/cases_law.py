"""The law: N ranks with batch B / N each equal one process with batch B."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.inside import everywhere, settings
from tests.multirank.oracle import (
    assert_law,
    data,
    each,
    merged,
    mine,
    model,
    one_process,
    placeholders,
    train,
    v1,
    without_tfdist,
)
from tests.named import subtest

DTYPES = "float32", "float64"
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.3),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05, epsilon=1e-3),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.3),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.05, momentum=0.5, epsilon=1e-2),
}


def minimized(make: Callable[[], Any], dtype: str) -> Any:
    return make().minimize(model(dtype)[0])


def clipped_model(make: Callable[[], Any], dtype: str = "float32", **options: Any) -> Any:
    return clipped(make(), *model(dtype, **options))


def clipped(optimizer: v1.train.Optimizer, loss: Any, variables: list[Any], limit: float = 0.3) -> Any:
    gradients = [merged(g) for g in tf.gradients(loss, variables)]
    gradients, _ = tf.clip_by_global_norm(gradients, limit)
    return optimizer.apply_gradients(zip(gradients, variables, strict=True))


def case_minimize() -> None:
    for name, dtype in each(OPTIMIZERS, DTYPES):
        with subtest(name, dtype):
            assert_law(functools.partial(minimized, OPTIMIZERS[name], dtype), dtype)


def case_clipped_before_apply() -> None:
    for name, dtype in each(OPTIMIZERS, DTYPES):
        with subtest(name, dtype):
            assert_law(functools.partial(clipped_model, OPTIMIZERS[name], dtype), dtype)


def case_compute_and_apply_with_global_step() -> None:
    def build() -> Any:
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        pairs = [(tf.clip_by_norm(merged(g), 0.1), v) for g, v in optimizer.compute_gradients(model()[0])]
        return optimizer.apply_gradients(pairs, global_step=v1.train.get_or_create_global_step())

    assert_law(build)


def case_subclasses_of_optimizers() -> None:
    class WithSuper(v1.train.MomentumOptimizer):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
            halved = [(g * 0.5 if isinstance(g, tf.Tensor) else g, v) for g, v in grads_and_vars]
            return super().apply_gradients(halved, global_step, name)

    class WithoutSuper(v1.train.Optimizer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(False, "WithoutSuper")

        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
            dense = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
            return tf.group([v.assign_sub(0.2 * tf.sign(g) * g * g) for g, v in dense])

    assert_law(lambda: clipped(WithSuper(0.1, 0.9), *model()))
    assert_law(lambda: clipped(WithoutSuper(), *model()))
    assert_law(lambda: WithoutSuper().minimize(model()[0]))


def case_gradients_that_are_none() -> None:
    def build() -> Any:
        loss, variables = model()
        unused = v1.get_variable("unused", [2])
        return clipped(OPTIMIZERS["momentum"](), loss, [*variables, unused])

    assert_law(build)


def case_gradients_of_readings_and_custom_gradients() -> None:
    """Gradients of ``v.value()``, and gradients computed without ``tf.gradients``."""

    def readings() -> Any:
        inputs = placeholders()
        w = v1.get_variable("w", [5, 3], use_resource=True)
        reading = w.value()
        loss = tf.reduce_mean((inputs["x"] @ reading - inputs["y"]) ** 2)
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [reading]), 0.3)
        return OPTIMIZERS["momentum"]().apply_gradients([(gradients[0], w)])

    def by_hand() -> Any:
        inputs = placeholders()
        w = v1.get_variable("w", [5, 3])
        error = inputs["x"] @ w - inputs["y"]
        gradient = tf.transpose(inputs["x"]) @ error / tf.cast(tf.shape(error)[0], tf.float32)
        return OPTIMIZERS["adam"]().apply_gradients([(gradient, w)])

    assert_law(readings)
    assert_law(by_hand)


def case_two_optimizers_in_one_graph() -> None:
    def build() -> Any:
        loss, variables = model()
        first = clipped(OPTIMIZERS["momentum"](), loss, variables[:2])
        second = clipped(OPTIMIZERS["adam"](), loss, variables[2:])
        return [first, second]

    assert_law(build)


def case_gradients_that_depend_on_applied_gradients() -> None:
    """Rewiring would close a cycle, so the gradients are averaged where they are applied."""

    def build() -> Any:
        loss, variables = model()
        first = tf.gradients(loss, variables[:1])[0]
        second = tf.gradients(tf.reduce_sum(first), variables[1:2])[0]
        return OPTIMIZERS["sgd"]().apply_gradients([(first, variables[0]), (second, variables[1])])

    assert_law(build)


def case_variables_in_conditions_and_loops() -> None:
    def build() -> Any:
        inputs = placeholders()

        def layer() -> Any:
            w = v1.get_variable("w", [5, 3], use_resource=True)
            return inputs["x"] @ w

        output = v1.cond(tf.reduce_sum(tf.ones([1])) > 0, layer, lambda: tf.zeros_like(inputs["y"]))
        b = v1.get_variable("b", [3])
        output = v1.while_loop(lambda k, o: k < 3, lambda k, o: (k + 1, o * 0.7 + b), [0, output])[1]
        loss = tf.reduce_mean((output - inputs["y"]) ** 2)
        return clipped(OPTIMIZERS["momentum"](), loss, v1.trainable_variables())

    assert_law(build)
    was = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        assert_law(build)
    finally:
        (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()


def case_control_dependencies_around_apply() -> None:
    """Updates with control dependencies on gradients must not close a cycle with the average."""

    def build() -> Any:
        loss, variables = model()
        gradients = [merged(g) for g in tf.gradients(loss, variables)]
        with tf.control_dependencies([tf.linalg.global_norm(gradients)]):
            return OPTIMIZERS["sgd"]().apply_gradients(zip(gradients, variables, strict=True))

    assert_law(build)


def case_reduced_precision() -> None:
    def build() -> Any:
        inputs = placeholders()
        pairs = []
        for dtype in ("float16", "bfloat16"):
            w = v1.get_variable(dtype, [5, 3], dtype)
            loss = tf.reduce_mean((tf.cast(inputs["x"], dtype) @ w - tf.cast(inputs["y"], dtype)) ** 2)
            pairs.append((tf.gradients(loss, [w])[0], w))
        return v1.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)

    feeds = data(steps=3)
    expected = one_process(lambda: train(build, feeds))
    found = train(build, [mine(f) for f in feeds], seed=tfdist.rank())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].astype("f4"), value.astype("f4"), atol=0.05, err_msg=name)


def case_large_and_many_tensors() -> None:
    """Several buckets, tensors larger than a bucket, and an empty tensor."""

    def build() -> Any:
        inputs = placeholders()
        total = tf.zeros([])
        for k, shape in enumerate([[5, 700], [5, 3], [5, 0], [5, 3]] * 3):
            total += tf.reduce_mean(tf.reduce_sum(inputs["x"] @ v1.get_variable(f"w{k}", shape), 1) ** 2)
        return clipped(OPTIMIZERS["momentum"](), total * 1e-2, v1.trainable_variables())

    with settings(bucket_mb=0.001):
        assert_law(build)


def case_without_the_rewriting_the_ranks_differ() -> None:
    """Negative control: without tfdist, the ranks' weights differ."""
    feeds = data()
    with without_tfdist():
        found = train(lambda: OPTIMIZERS["momentum"]().minimize(model()[0]), [mine(f) for f in feeds])
    everyone = everywhere(found)
    assert all(np.max(np.abs(everyone[0]["w:0"] - other["w:0"])) > 1e-3 for other in everyone[1:])


def case_results_are_bit_identical_on_all_ranks() -> None:
    found = train(lambda: clipped(OPTIMIZERS["adam"](), *model()), [mine(f) for f in data()], seed=tfdist.rank())
    for other in everywhere(found):
        for name, value in other.items():
            np.testing.assert_array_equal(value, found[name], err_msg=name)


def case_slices_stay_slices() -> None:
    """The result has each row that a rank has touched, once, and no other rows."""
    with tf.Graph().as_default(), v1.Session() as session:
        rank, size = tfdist.rank(), tfdist.size()
        e = v1.get_variable("e", [50, 2], initializer=v1.zeros_initializer())
        rows = tf.constant([40, rank, rank, 40])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(e, rows) * (rank + 1.0))
        gradient = tf.gradients(loss, [e])[0]
        step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, e)])
        assert isinstance(gradient, tf.IndexedSlices)
        session.run(v1.global_variables_initializer())
        indices, values, _ = session.run([gradient.indices, gradient.values, step])
        total = size * (size + 1) / 2
        expected = {40: 2 * total / size} | {r: 2 * (r + 1) / size for r in range(size)}
        assert sorted(indices) == sorted(expected)
        dense = session.run(e)
        for row in range(50):
            np.testing.assert_allclose(dense[row], -expected.get(row, 0.0), rtol=1e-6, err_msg=f"row {row}")
        assert values.shape[1] == 2
