"""LARC scales averages by a rate for each variable; compared with NumPy on all ranks' data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.oracle import BATCH, Feed, assert_close, data, mine, placeholders, v1
from tests.named import subtest

Values = dict[str, np.ndarray]
RATE, MOMENTUM = 0.5, 0.9
# With these trust coefficients the rate is clipped for some variables, and unchanged for others.
SETTINGS: dict[str, dict[str, Any]] = {
    "clip": {"eta": 0.1, "mode": "clip"},
    "scale": {"eta": 0.2, "mode": "scale", "epsilon": 1e-2},
}


def initial(rank: int) -> Values:
    """Return a rank's initial values; rank 0's are used on all ranks, and its bias is 0, so without a norm."""
    random = np.random.RandomState(rank)
    w, e = random.randn(5, 3), random.randn(7, 3) * 3
    return {n: v.astype(np.float32) for n, v in {"w": w, "b": np.full(3, float(rank)), "e": e}.items()}


def gradients(values: Values, feed: Feed) -> Values:
    """Return the gradients of the mean of (x w + b + e[i] - y) ** 2."""
    difference = feed["x"] @ values["w"] + values["b"] + values["e"][feed["i"]] - feed["y"]
    back = 2 * difference / difference.size
    rows = np.zeros_like(values["e"])
    np.add.at(rows, feed["i"], back)
    return {"w": feed["x"].T @ back, "b": back.sum(0), "e": rows}


def factor(w: np.ndarray, g: np.ndarray, eta: float, mode: str, epsilon: float = 1e-8) -> float:
    """Return LARC's factor for a variable, by the formula in NumPy."""
    if not w.any() or not g.any():
        return 1.0
    local = eta * np.linalg.norm(w) / (np.linalg.norm(g) + epsilon)
    return float(local) if mode == "scale" else min(float(local) / RATE, 1.0)


def by_hand(settings: dict[str, Any], feeds: list[Feed]) -> tuple[Values, list[dict[str, float]]]:
    """Train one process with the whole batch; return its variables and the factors of each step."""
    values = {n: v.astype(np.float64) for n, v in initial(0).items()}
    slots = {n: np.zeros_like(v) for n, v in values.items()}
    factors = []
    for feed in feeds:
        found = gradients(values, {n: np.asarray(v, v.dtype if n == "i" else np.float64) for n, v in feed.items()})
        factors.append({n: factor(values[n], g, **settings) for n, g in found.items()})
        for name, gradient in found.items():
            slots[name] = MOMENTUM * slots[name] + factors[-1][name] * gradient
            values[name] = values[name] - RATE * slots[name]
    return values, factors


def around(optimizer: Any, settings: dict[str, Any]) -> Any:
    """Wrap the optimizer; without settings, return it unchanged, so that the job's configuration applies."""
    return tfdist.larc(optimizer, **settings) if settings else optimizer


def in_a_session(settings: dict[str, Any], feeds: list[Feed], in_hand: bool) -> Values:
    with tf.Graph().as_default() as graph:
        inputs = placeholders()
        own = initial(tfdist.rank())
        variables = {n: v1.get_variable(n, initializer=tf.constant(v), use_resource=n != "w") for n, v in own.items()}
        rows = tf.nn.embedding_lookup(variables["e"], inputs["i"])
        output = inputs["x"] @ v1.convert_to_tensor(variables["w"]) + variables["b"] + rows
        loss = tf.reduce_mean((output - inputs["y"]) ** 2)
        optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)
        if in_hand:
            given = list(variables.values())
            scaled = tfdist.larc_gradients(tf.gradients(loss, given), given, RATE, **settings)
            step = optimizer.apply_gradients(zip(scaled, given, strict=True))
        else:
            step = around(optimizer, settings).minimize(loss, v1.train.get_or_create_global_step())
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            for feed in feeds:
                session.run(step, {f"{name}:0": value for name, value in feed.items()})
            return session.run(variables)


class Regression(keras.Model):
    """The same model in Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.embedding = keras.layers.Dense(3), keras.layers.Embedding(7, 3)
        self({"x": np.zeros([1, 5], np.float32), "i": np.zeros([1], np.int32)})
        own = initial(tfdist.rank())
        self.set_weights([own["w"], own["b"], own["e"]])

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs["x"]) + self.embedding(inputs["i"])

    def values(self) -> Values:
        return dict(zip("wbe", self.get_weights(), strict=True))


def several() -> Any:
    """Return an optimizer that has one for the embedding and one for other weights."""
    own = {name: keras.optimizers.SGD(RATE, MOMENTUM) for name in ("dense", "embedding")}
    return keras.optimizers.MultiOptimizer(lambda weight: own["embedding" if "embedding" in weight.path else "dense"])


def in_fit(
    settings: dict[str, Any],
    feeds: list[Feed],
    make: Callable[[], Any] = lambda: keras.optimizers.SGD(RATE, MOMENTUM),
) -> Values:
    model = Regression()
    optimizer = make()
    optimizer.build(model.trainable_variables)  # a MultiOptimizer of a function learns its optimizers here
    model.compile(around(optimizer, settings), "mse")
    x, y, i = (np.concatenate([feed[name] for feed in feeds]) for name in "xyi")
    model.fit({"x": x, "i": i}, y, BATCH // tfdist.size(), shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == len(feeds)
    return model.values()


def in_a_function(settings: dict[str, Any], feeds: list[Feed], function: bool = True, in_hand: bool = False) -> Values:
    model, optimizer = Regression(), keras.optimizers.SGD(RATE, MOMENTUM)
    if not in_hand:
        optimizer = around(optimizer, settings)

    def step(feed: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(feed) - feed["y"]) ** 2)
        variables = model.trainable_variables
        found = tape.gradient(loss, variables)
        if in_hand:
            found = tfdist.larc_gradients(found, variables, optimizer.learning_rate, **settings)
        optimizer.apply_gradients(zip(found, variables, strict=True))

    run = tf.function(step) if function else step
    for feed in feeds:
        run({n: tf.constant(v) for n, v in feed.items()})
    return model.values()


WAYS: dict[str, Callable[[dict[str, Any], list[Feed]], Values]] = {
    "session": lambda settings, feeds: in_a_session(settings, feeds, False),
    "session, gradients in hand": lambda settings, feeds: in_a_session(settings, feeds, True),
    "fit": in_fit,
    "fit, several optimizers": lambda settings, feeds: in_fit(settings, feeds, several),
    "function": in_a_function,
    "function, gradients in hand": lambda settings, feeds: in_a_function(settings, feeds, in_hand=True),
    "eagerly": lambda settings, feeds: in_a_function(settings, feeds, function=False),
}
if not hasattr(keras.optimizers, "MultiOptimizer"):  # since Keras 3.15
    del WAYS["fit, several optimizers"]


def case_larc_scales_averages() -> None:
    feeds = data(steps=4)
    for mode, settings in SETTINGS.items():
        expected, factors = by_hand(settings, feeds)
        assert factors[0]["b"] == 1 and any(step["b"] != 1 for step in factors), "from 0 on, and then with a norm"
        assert all(step["w"] != step["e"] for step in factors)
        assert mode == "scale" or 1 in {f for step in factors for n, f in step.items() if n != "b"}
        own, _ = by_hand(settings, [mine(feed) for feed in feeds])
        alone = {n: np.abs(own[n] - v).max() / np.abs(v).max() for n, v in expected.items()}
        assert tfdist.size() == 1 or max(alone.values()) > 1e-2, "no negative"
        every = list(WAYS.items())
        for way, train in every if mode == "clip" else every[::2]:  # the mode does not depend on how it trains
            with subtest(mode, way):
                found = train(settings, [mine(feed) for feed in feeds])
                assert_close({n: v.astype(np.float64) for n, v in found.items()}, expected, 1e-5)


def case_larc_by_a_setting() -> None:
    """Scripts without LARC calls: sessions, fit, functions and eager steps, of TensorFlow and Keras."""
    feeds = data(steps=4)
    own = [mine(feed) for feed in feeds]
    ways = {name: train for name, train in WAYS.items() if "in hand" not in name}
    try:
        for mode, eta in (("clip", 0.1), ("scale", 0.2)):
            expected, _ = by_hand({"eta": eta, "mode": mode}, feeds)
            tfdist.configure(larc=mode, larc_eta=eta)
            for way, train in ways.items() if mode == "clip" else list(ways.items())[:2]:
                with subtest(mode, way):
                    found = train({}, own)
                    assert_close({n: v.astype(np.float64) for n, v in found.items()}, expected, 1e-5)
            for way, train in [(way, train) for way, train in ways.items() if way.startswith(("session", "fit"))]:
                with subtest(mode, way, "twice"), pytest.raises(tfdist.SettingsError, match="has LARC already"):
                    train({"eta": eta, "mode": mode}, own)
    finally:
        tfdist.configure(larc="off", larc_eta=0.001)
    plain, _ = by_hand({"eta": 1e9, "mode": "clip"}, feeds)
    assert_close({n: v.astype(np.float64) for n, v in in_fit({}, own).items()}, plain, 1e-5)
