"""BatchNormalization(synchronized=True): N ranks with their parts, against one process with the whole batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_keras import arrays, fit, train_on_batch, trained
from tests.multirank.inside import everywhere
from tests.multirank.oracle import BATCH, assert_close, one_process
from tests.named import subtest


def dense(synchronized: bool) -> Any:
    inputs = keras.Input([5])
    hidden = keras.layers.BatchNormalization(momentum=0.7, synchronized=synchronized)(inputs)
    hidden = keras.layers.Dense(7, "tanh")(hidden)
    hidden = keras.layers.BatchNormalization(momentum=0.7, synchronized=synchronized)(hidden)
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def image(synchronized: bool) -> Any:
    """Return a model with a convolution and two branches, one of them normalized with channels first."""
    inputs = keras.Input([5])
    hidden = keras.layers.Conv2D(4, 1)(keras.layers.Reshape([5, 1, 1])(inputs))
    left = keras.layers.BatchNormalization(axis=1, synchronized=synchronized)(hidden)
    right = keras.layers.BatchNormalization(synchronized=synchronized)(hidden)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(left * keras.ops.tanh(right))))


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


Program = tuple[Callable[[bool], Any], Any, dict[str, Any]]


def case_fit() -> None:
    assert_fits((dense, fit, {}), (dense, train_on_batch, {"run_eagerly": True}))


def case_variations_of_fit() -> None:
    assert_fits(
        (dense, fit, {"jit_compile": True}),
        (dense, fit, {"steps_per_execution": 2}),
        (image, fit, {}),
    )


def assert_fits(*turns: Program) -> None:
    """Check weights and moving statistics against one process; unsynchronized, they must differ."""
    for build, run, options in turns:
        with subtest(build, run, options):
            plain, own = functools.partial(build, False), functools.partial(build, True)
            expected = one_process(functools.partial(trained, plain, sgd, run, False, 0, **options))
            apart = trained(plain, sgd, run, True, tfdist.rank(), **options)
            assert any(np.abs(apart[n] - v).max() > 1e-3 * np.abs(v).max() for n, v in expected.items()), "no negative"
            assert (
                everywhere({n: v.tolist() for n, v in apart.items()})
                != [{n: v.tolist() for n, v in apart.items()}] * tfdist.size()
            ), "the moving statistics are alike without it"
            assert_close(trained(own, sgd, run, True, tfdist.rank(), **options), expected, 1e-5)


def step(x: np.ndarray, mask: np.ndarray | None, synchronized: bool, whole: int, function: bool) -> dict[str, Any]:
    """Return the gradients of a loss that sums over a part of a whole batch, and moving statistics.

    Args:
      x: inputs, [rows, 4, 5].
      mask: the layer's mask, [rows, 4]; None: no mask.
      synchronized: True for statistics of all ranks, and gradients that are their mean.
      whole: number of elements of ``x`` on all ranks.
      function: True to compute in a tf.function.
    """
    size = tfdist.size() if synchronized else 1
    w = tf.Variable(np.linspace(-1, 1, 15).reshape(5, 3).astype("float32"))
    layer = keras.layers.BatchNormalization(synchronized=synchronized)
    layer.build([None, 4, 3])
    variables = [w, *(v.value for v in layer.trainable_variables)]

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            y = layer(tf.constant(x) @ w, training=True, mask=mask)
            loss = tf.reduce_sum(tf.constant(np.sin(x[..., :3])) * tf.tanh(y)) * size / whole
        return tape.gradient(loss, variables)

    found = (tf.function(gradients) if function else gradients)()
    values = dict(zip(("w", "gamma", "beta"), found, strict=True))
    values |= {"mean": layer.moving_mean.value, "variance": layer.moving_variance.value}
    return {n: v.numpy() for n, v in values.items()}


def case_uneven_batches_and_masks() -> None:
    """Each sample counts once, on whichever rank it is."""
    random = np.random.RandomState(5)
    rows = [3 + 2 * rank for rank in range(tfdist.size())]
    x = random.randn(sum(rows), 4, 5).astype("float32") + 3
    mask = random.rand(sum(rows), 4) < 0.6
    own = slice(sum(rows[: tfdist.rank()]), sum(rows[: tfdist.rank() + 1]))
    for masked in (False, True):
        for function in (False, True):
            with subtest("masked", masked, "function", function):
                whole = functools.partial(step, x, mask if masked else None, False, x.size, function)
                found = step(x[own], mask[own] if masked else None, True, x.size, function)
                assert_close(found, one_process(whole), 1e-5)


def case_moments() -> None:
    """The variance is also correct if a mean of squares would lose all of its digits."""
    for dtype, offset, tolerance in (("float16", 0, 2e-3), ("float32", 3000, 1e-3), ("float64", 3000, 1e-9)):
        x = (np.random.RandomState(1).randn(tfdist.size(), 40, 3) + offset).astype(dtype)
        mean, variance = keras.ops.moments(tf.constant(x[tfdist.rank()]), [0], synchronized=True)
        assert mean.dtype == variance.dtype == dtype
        wide = x.reshape(-1, 3).astype("float64")
        np.testing.assert_allclose(mean, wide.mean(0), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(variance, wide.var(0), rtol=tolerance)


def case_evaluation_and_training_alone() -> None:
    x, y = arrays()
    keras.utils.set_random_seed(tfdist.rank())
    model = dense(True)
    model.compile(sgd(), "mse")
    fit(model, x, y, BATCH // tfdist.size())
    if tfdist.rank() == 0:
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
        model(x, training=False)
        with tfdist.alone("a training of its own"):
            other = dense(True)
            other.compile(sgd(), "mse")
            fit(other, x, y, BATCH)
    fit(model, x, y, BATCH // tfdist.size())
    weights = [w.tolist() for w in model.get_weights()]
    assert everywhere(weights) == [weights] * tfdist.size()


def case_statistics_of_a_session_can_be_averaged() -> None:
    v1 = tf.compat.v1
    for resource in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            own = [float(tfdist.rank()), 2.0]
            mean = v1.get_variable("moving_mean", initializer=own, trainable=False, use_resource=resource)
            average = v1.assign(mean, tfdist.all_reduce(mean))
            session.run(mean.initializer)
            session.run(average)
            np.testing.assert_allclose(session.run(mean), [(tfdist.size() - 1) / 2, 2.0])
