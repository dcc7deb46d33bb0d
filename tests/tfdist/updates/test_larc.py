"""LARC in one process. On several ranks: multirank/cases_larc.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.cases_larc import case_larc_scales_averages, factor

v1 = tf.compat.v1
W = np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])  # |w| = 5
G = np.array([[0.0, 6.0], [8.0, 0.0], [0.0, 0.0]])  # |g| = 10


def variable(value: Any = W, dtype: Any = tf.float32) -> Any:
    return tf.Variable(value, dtype=dtype)


@pytest.mark.parametrize(
    ("settings", "rate", "expected"),
    [
        ({"eta": 0.2, "mode": "scale"}, None, 0.2 * 5 / 10),
        ({"eta": 0.2, "mode": "scale", "epsilon": 40}, None, 0.2 * 5 / 50),
        ({"eta": 0.2, "mode": "clip"}, 0.4, 0.1 / 0.4),
        ({"eta": 0.2, "mode": "clip"}, 0.05, 1),
        ({"eta": 0.2, "mode": "clip"}, 0.0, 1),
        ({}, 0.1, 0.001 * 5 / 10 / 0.1),
    ],
)
@pytest.mark.parametrize("dtype", (tf.float32, tf.float64, tf.bfloat16))
def test_the_formula(settings: dict[str, Any], rate: float | None, expected: float, dtype: tf.DType) -> None:
    given = [tf.constant(G, dtype), None]
    found, none = tfdist.larc_gradients(given, [variable(dtype=dtype), variable()], rate, **settings)
    assert none is None and found.dtype == dtype
    np.testing.assert_allclose(tf.cast(found, tf.float64), G * expected, rtol=1e-2 if dtype == tf.bfloat16 else 1e-6)


def test_nothing_to_go_by() -> None:
    zero = np.zeros([3, 2])
    for w, g in ((zero, G), (W, zero), (zero, zero)):
        (found,) = tfdist.larc_gradients([tf.constant(g, tf.float32)], [variable(w)], None, mode="scale")
        np.testing.assert_array_equal(found, g)


def test_rows_that_occur_twice_count_once() -> None:
    """(3, 0) and (3, 8), both for row 1, add up to (6, 8) with the norm 10."""
    rows = tf.IndexedSlices(tf.constant([[3.0, 0.0], [3.0, 8.0]]), tf.constant([1, 1]), tf.constant([3, 2]))
    (found,) = tfdist.larc_gradients([rows], [variable()], None, eta=0.2, mode="scale")
    assert isinstance(found, tf.IndexedSlices)
    np.testing.assert_allclose(found.values, [[0.3, 0.0], [0.3, 0.8]], rtol=1e-6)
    np.testing.assert_array_equal(found.indices, [1, 1])


def test_half_precision_does_not_overflow() -> None:
    """300 ** 2 is above the range of float16."""
    (found,) = tfdist.larc_gradients(
        [tf.constant([300.0, 400.0], tf.float16)], [variable([300.0, 400.0], tf.float16)], None, 0.5, "scale"
    )
    np.testing.assert_allclose(found, [150, 200], rtol=1e-3)


def test_sessions_fit_and_tapes_are_what_numpy_does() -> None:
    case_larc_scales_averages()


def updated(optimizer: Any, *gradients: np.ndarray) -> np.ndarray:
    """Return the variable after a step with each gradient."""
    weights = keras.Variable(W, dtype="float32")
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), weights)])
    return np.asarray(weights, np.float64)


def test_keras_clips_before() -> None:
    """Keras clips to |g| = 1 first: LARC's rate is 0.1 * 5 / 1, above the optimizer's 0.25, so the factor is 1."""
    optimizer = tfdist.larc(keras.optimizers.SGD(0.25, clipnorm=1.0), eta=0.1)
    np.testing.assert_allclose(updated(optimizer, G), W - 0.25 * G / 10, rtol=1e-6)
    assert optimizer.learning_rate == 0.25
    optimizer.learning_rate = 2.0  # as callbacks do
    assert optimizer.learning_rate == 2.0


def test_keras_accumulates_before() -> None:
    optimizer = tfdist.larc(keras.optimizers.SGD(0.25, gradient_accumulation_steps=2), eta=0.1, mode="scale")
    mean = (G + 2 * W) / 2
    expected = W - 0.25 * factor(W, mean, 0.1, "scale") * mean
    np.testing.assert_allclose(updated(optimizer, G, 2 * W), expected, rtol=1e-6)


def test_keras_unscales_before() -> None:
    expected = W - 0.25 * factor(W, G, 0.1, "scale") * G
    scaled = keras.optimizers.SGD(0.25, loss_scale_factor=64.0)
    optimizer = tfdist.larc(scaled, eta=0.1, mode="scale")
    assert float(optimizer.scale_loss(2.0)) == 128
    np.testing.assert_allclose(updated(optimizer, 64 * G), expected, rtol=1e-6)
    dynamic = keras.optimizers.LossScaleOptimizer(
        tfdist.larc(keras.optimizers.SGD(0.25, loss_scale_factor=2.0), eta=0.1, mode="scale"), initial_scale=64.0
    )  # LossScaleOptimizer removes the fixed factor
    assert float(dynamic.scale_loss(2.0)) == 128
    weights = keras.Variable(W, dtype="float32")
    for overflow in (False, True):
        dynamic.apply([tf.constant(64 * G * (np.inf if overflow else 1), tf.float32)], [weights])
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert int(dynamic.iterations) == 1


def test_a_saved_model_goes_on(tmp_path: Path) -> None:
    x, y = np.random.RandomState(0).randn(2, 32, 3).astype(np.float32)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3)])
    rate = keras.optimizers.schedules.PolynomialDecay(0.5, 20, 0.0)
    larc = {"eta": 0.1, "mode": "scale", "epsilon": 1e-3}
    model.compile(tfdist.larc(keras.optimizers.SGD(rate, 0.9), **larc), "mse")  # type: ignore[arg-type]
    model.fit(x, y, 8, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == 4
    tfdist.larc(loaded.optimizer, **larc)  # type: ignore[arg-type]
    for one in (model, loaded):
        one.fit(x, y, 8, shuffle=False, verbose=0)
    for expected, found in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_session(tmp_path: Path) -> None:
    """The rate may be callable; slots are the inner optimizer's, and checkpoints contain them."""
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("w", initializer=tf.constant(W, tf.float32), use_resource=True)
        optimizer = tfdist.larc(v1.train.MomentumOptimizer(lambda: 0.25, 0.9), eta=0.1)
        step = optimizer.apply_gradients([(tf.constant(G, tf.float32), weights)])
        session.run(v1.global_variables_initializer())
        session.run(step)
        update = factor_of_clip(0.1, 0.25) * G
        np.testing.assert_allclose(session.run(weights), W - 0.25 * update, rtol=1e-6)
        np.testing.assert_allclose(session.run(optimizer.get_slot(weights, "momentum")), update, rtol=1e-6)
        slot, value = optimizer.get_slot(weights, "momentum"), session.run(weights)
        # Checkpoints are restored before and after slots are created.
        path = v1.train.Checkpoint(optimizer=optimizer, w=weights).save(str(tmp_path / "c"), session)
        session.run([slot.initializer, weights.initializer])
        v1.train.Checkpoint(optimizer=optimizer, w=weights).restore(path).assert_consumed().run_restore_ops()
        np.testing.assert_allclose(session.run([slot, weights]), [update, value], rtol=1e-6)
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("w", initializer=tf.constant(W, tf.float32), use_resource=True)
        optimizer = tfdist.larc(v1.train.MomentumOptimizer(0.25, 0.9), eta=0.1)
        status = v1.train.Checkpoint(optimizer=optimizer, w=weights).restore(path)
        optimizer.apply_gradients([(tf.constant(G, tf.float32), weights)])
        status.assert_consumed().initialize_or_restore()
        np.testing.assert_allclose(session.run(optimizer.get_slot(weights, "momentum")), update, rtol=1e-6)


def factor_of_clip(eta: float, rate: float) -> float:
    """Return the factor for W and G in mode ``clip``."""
    return min(eta * 5 / 10 / rate, 1)


class HiddenRate(v1.train.Optimizer):  # type: ignore[misc, name-defined]
    """An optimizer with a hidden learning rate."""

    def __init__(self) -> None:
        super().__init__(False, "Silent")


def within() -> Any:
    inner = keras.optimizers.SGD()
    tfdist.larc(keras.optimizers.LossScaleOptimizer(inner))
    return tfdist.larc(keras.optimizers.LossScaleOptimizer(inner))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: tfdist.larc(keras.optimizers.SGD(), mode="clap"), ValueError, "'clip', 'scale'"),  # type: ignore[arg-type]
        (lambda: tfdist.larc(keras.optimizers.SGD(), eta=0), ValueError, "eta=0; it is more than 0"),
        (lambda: tfdist.larc(keras.optimizers.SGD(), epsilon=-1), ValueError, "epsilon=-1; it is at least 0"),
        (lambda: tfdist.larc(keras.optimizers.SGD(), learning_rate=0.1), ValueError, "leave it out"),
        (lambda: tfdist.larc(HiddenRate()), ValueError, "learning rate of HiddenRate cannot be read"),
        (lambda: tfdist.larc("sgd"), TypeError, "builtins.str is neither .* tfdist.larc_gradients"),
        (lambda: tfdist.larc(tfdist.larc(keras.optimizers.SGD())), ValueError, "this SGD has LARC already"),
        (lambda: tfdist.larc(tfdist.larc(v1.train.AdamOptimizer())), ValueError, "has LARC already"),
        (within, ValueError, "this LossScaleOptimizer has LARC already"),
        (lambda: tfdist.larc_gradients([None], [], 0.1), ValueError, "1 gradients for 0 variables"),
        (lambda: tfdist.larc_gradients([], [], None), ValueError, "learning_rate=None"),
    ],
)
def test_refusals(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()
    assert isinstance(tfdist.larc(HiddenRate(), learning_rate=0.1), v1.train.Optimizer)
