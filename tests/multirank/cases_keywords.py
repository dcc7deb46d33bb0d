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


def by_hand(_: Any) -> Any:
    """Return a gradient that no tape has computed: only the optimizer's hook can average it, in a function."""
    return tf.fill([3], RANK + 1.0)


def steps_of(kind: Callable[..., Any], apply: Callable[[Any, Any, Any], Any]) -> None:
    """Check a step of ``apply(optimizer, gradient, w)``, from a tape eagerly and in a function, and by hand in one."""
    for compute, function in ((gradient, False), (gradient, True), (by_hand, True)):
        w, optimizer = tf.Variable(np.zeros(3, np.float32)), kind(learning_rate=1.0)

        def step(w: Any, optimizer: Any = optimizer, compute: Callable[[Any], Any] = compute) -> None:
            apply(optimizer, compute(w), w)

        with subtest(kind, compute, "function" if function else "eager"):
            (tf.function(step) if function else step)(w)
            np.testing.assert_allclose(w.numpy(), -MEAN, rtol=1e-6)


def case_keras_optimizers_by_keyword() -> None:
    import keras

    steps_of(keras.optimizers.SGD, lambda o, found, w: o.apply_gradients(grads_and_vars=[(found, w)]))
    steps_of(keras.optimizers.SGD, lambda o, found, w: o.apply(trainable_variables=[w], grads=[found]))


def case_tf_keras_optimizers_by_keyword() -> None:
    if importlib.util.find_spec("tf_keras") is None:
        return
    from tf_keras import optimizers

    for kind in (optimizers.SGD, optimizers.legacy.SGD):
        steps_of(kind, lambda o, found, w: o.apply_gradients(grads_and_vars=[(found, w)]))


def case_fit_by_keyword() -> None:
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(learning_rate=0.5), loss="mse")
    x, y = np.ones((4, 1), np.float32), np.full((4, 1), RANK + 1, np.float32)
    model.fit(y=y, x=x, batch_size=4, epochs=1, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[MEAN]], rtol=1e-6)
    model.evaluate(y=y, x=x, verbose=0)
    model.predict(x=x, verbose=0)
