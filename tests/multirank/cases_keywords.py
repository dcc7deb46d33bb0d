"""Documented keywords: hooked functions take arguments by position and by name, as without tfdist."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.oracle import v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()
MEAN = float(np.mean(np.arange(SIZE) + 1))  # mean of the ranks' gradients, which are rank + 1


def case_tf1_optimizers_by_keyword() -> None:
    for name in ("compute_gradients", "apply_gradients", "minimize"):
        with subtest(name), tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
            loss = tf.reduce_sum(w) * (RANK + 1)
            optimizer = v1.train.GradientDescentOptimizer(learning_rate=1.0)
            if name == "minimize":
                step = optimizer.minimize(loss=loss, var_list=[w])
            else:
                pairs = optimizer.compute_gradients(loss=loss, var_list=[w])
                if name == "apply_gradients":
                    pairs = list(zip(tf.gradients(ys=loss, xs=[w]), [w], strict=True))
                step = optimizer.apply_gradients(global_step=None, grads_and_vars=pairs)
            session.run(fetches=v1.variables_initializer(var_list=[w]))
            session.run(feed_dict=None, fetches=step)
            np.testing.assert_allclose(session.run(w), -MEAN, rtol=1e-6)


def eager_and_traced(assign: Callable[[Any], Any]) -> None:
    def step(w: Any) -> None:
        assign(w)

    for name, run in (("eager", step), ("function", tf.function(step))):
        w = tf.Variable(np.zeros([4, 2], np.float32))
        with subtest(name):
            run(w)
            np.testing.assert_allclose(w.numpy(), -MEAN, rtol=1e-6)


def gradient(w: Any) -> Any:
    with tf.GradientTape(persistent=False) as tape:
        loss = tf.reduce_sum(w) * (RANK + 1)
    return tape.gradient(sources=w, target=loss)


def case_assignments_by_keyword() -> None:
    rows = tf.range(4)
    eager_and_traced(lambda w: w.assign_sub(delta=gradient(w)))
    eager_and_traced(lambda w: w.assign_add(read_value=False, delta=-gradient(w)))
    eager_and_traced(lambda w: w.assign(value=w - gradient(w)))
    eager_and_traced(lambda w: w.scatter_sub(sparse_delta=tf.IndexedSlices(gradient(w), rows)))
    eager_and_traced(lambda w: w.scatter_add(sparse_delta=tf.IndexedSlices(-gradient(w), rows)))
    eager_and_traced(lambda w: w.scatter_update(sparse_delta=tf.IndexedSlices(w - gradient(w), rows)))


def case_keras_optimizers_by_keyword() -> None:
    import keras

    def apply(w: Any) -> None:
        keras.optimizers.SGD(learning_rate=1.0).apply_gradients(grads_and_vars=[(gradient(w), w)])

    for name, call in {
        "apply_gradients": apply,
        "apply": lambda w: keras.optimizers.SGD(1.0).apply(trainable_variables=[w], grads=[gradient(w)]),
    }.items():
        w = tf.Variable(np.zeros(3, np.float32))
        with subtest(name):
            call(w)
            np.testing.assert_allclose(w.numpy(), -MEAN, rtol=1e-6)


def case_tf_keras_optimizers_by_keyword() -> None:
    if importlib.util.find_spec("tf_keras") is None:
        return
    import tf_keras

    for name in ("SGD", "legacy.SGD"):
        optimizer: Any = tf_keras.optimizers
        for part in name.split("."):
            optimizer = getattr(optimizer, part)
        w = tf.Variable(np.zeros(3, np.float32))
        with subtest(name):
            optimizer(learning_rate=1.0).apply_gradients(grads_and_vars=[(gradient(w), w)])
            np.testing.assert_allclose(w.numpy(), -MEAN, rtol=1e-6)


def case_fit_by_keyword() -> None:
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(learning_rate=0.5), loss="mse")
    x, y = np.ones((4, 1), np.float32), np.full((4, 1), RANK + 1, np.float32)
    model.fit(y=y, x=x, batch_size=4, epochs=1, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[MEAN]], rtol=1e-6)
    model.evaluate(y=y, x=x, verbose=0)
    model.predict(x=x, verbose=0)
