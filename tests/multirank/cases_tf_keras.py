"""tf_keras, the package that continues Keras 2: N ranks with batch B / N train as one process with batch B.

On each rank, ``fit`` gets the rank's rows of each global batch, in the same order. So step k is the same step on all
ranks. The tests compare the weights and the optimizer's state.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import Train, assert_program_law
from tests.multirank.inside import settings
from tests.multirank.oracle import Feed, data, without_tfdist
from tests.named import subtest

STEPS = 4


def tk() -> Any:
    """Import tf_keras late: if it is not installed, the other cases still run (see each_case.py)."""
    import tf_keras

    return tf_keras


def law(train: Train, tolerance: float = 1e-5, feeds: list[Feed] | None = None) -> None:
    assert_program_law(train, tolerance, STEPS, tk().utils.set_random_seed, feeds)


def functional(**options: Any) -> Any:
    """Return a model with a layer and an embedding of the category."""
    layers = tk().layers
    x, i = tk().Input([5], name="x"), tk().Input([], dtype="int32", name="i")
    rows = layers.Embedding(7, 3, **options)(i)
    output = layers.Add(dtype="float32")([layers.Dense(3, "tanh", **options)(x), rows])
    return tk().Model({"x": x, "i": i}, output)


def dense(**options: Any) -> Any:
    """Return a built model without an embedding: Keras clips by the norm of unmerged rows."""
    layers = [tk().layers.Input([5]), tk().layers.Dense(4, "tanh", **options), tk().layers.Dense(3, dtype="float32")]
    return tk().Sequential(layers)


def unbuilt() -> Any:
    """Return a subclassed model, whose variables are made in the first step."""

    class Unbuilt(tk().Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rows = tk().layers.Dense(3, "tanh"), tk().layers.Embedding(7, 3)

        def call(self, inputs: dict[str, Any]) -> Any:
            return self.first(inputs["x"]) + self.rows(inputs["i"])

    return Unbuilt()


def remembered(model: Any, optimizer: Any) -> dict[str, np.ndarray]:
    """Return the weights and the optimizer's variables."""
    kept = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return {f"{k}: {re.sub(r'_[0-9]+', '', v.name)}": v.numpy() for k, v in enumerate([*model.weights, *kept])}


def weights_and_scale(model: Any, optimizer: Any) -> dict[str, np.ndarray]:
    """Return weights and loss scale, without Adam's squares, in which float16's rounding error doubles."""
    weights = {str(k): v for k, v in enumerate(model.get_weights())}
    return {**weights, "scale": optimizer.loss_scale.numpy()}


def inputs_of(model: Any, feed: Feed) -> Any:
    only_x = isinstance(model, tk().Sequential)
    return feed["x"] if only_x else {"x": feed["x"], "i": feed["i"]}


def fit(
    make: Callable[[], Any],
    optimizer: Callable[[], Any],
    remembers: Callable[..., dict[str, np.ndarray]] = remembered,
    **options: Any,
) -> Train:
    """Call ``compile`` with these options, then ``fit``."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model = make()
        model.compile(optimizer(), "mse", **options)
        together = {n: np.concatenate([feed[n] for feed in feeds]) for n in feeds[0]}
        rows = len(feeds[0]["x"])
        model.fit(inputs_of(model, together), together["y"], batch_size=rows, shuffle=False, verbose=0)
        return remembers(model, model.optimizer)

    return train


def new(name: str, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(tk().optimizers, name)(*args, **options)


def legacy(name: str, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(tk().optimizers.legacy, name)(*args, **options)


adam = functools.partial(new, "Adam", 0.05, epsilon=1e-3)
legacy_adam = functools.partial(legacy, "Adam", 0.05, epsilon=1e-3)
momentum = functools.partial(new, "SGD", 0.1, momentum=0.9)
legacy_momentum = functools.partial(legacy, "SGD", 0.1, momentum=0.9)


def case_shares_of_data() -> None:
    """TFDIST_AUTOSHARD=1 gives each rank its part of the arrays that all ranks have."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        rows = len(feeds[0]["x"])
        x, y = (np.concatenate([feed[name] for feed in data(steps=STEPS)]) for name in "xy")
        model = dense()
        model.compile(new("SGD", 0.1)(), "mse")
        model.fit(x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0, validation_data=(x, y))
        return {str(k): w for k, w in enumerate(model.get_weights())}

    with settings(autoshard=True):
        law(train)


def case_fit_functional_and_embeddings() -> None:
    for make in (momentum, adam, legacy_momentum, legacy_adam):
        with subtest(make.args, make.func):
            law(fit(functional, make()))


def case_fit_sequential_with_clipping_and_decay() -> None:
    for make, options in (
        (momentum, {"clipnorm": 0.05, "nesterov": True}),
        (adam, {"global_clipnorm": 0.05, "weight_decay": 0.1}),
        (adam, {"clipvalue": 0.02, "use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3}),
        (legacy_momentum, {"clipnorm": 0.05}),
        (legacy_adam, {"global_clipnorm": 0.05}),
    ):
        with subtest(make.args, make.func, options):
            law(fit(dense, make(**options)))


def case_synchronised_batch_normalization() -> None:
    """Weights and moving statistics equal those of one process."""

    def build() -> Any:
        layers = tk().layers
        parts = [layers.Dense(4, "tanh"), layers.BatchNormalization(synchronized=True), layers.Dense(3)]
        return tk().Sequential([layers.Input([5]), *parts])

    law(fit(build, legacy_momentum()))


def case_fit_a_subclass_that_is_not_built() -> None:
    for make in (momentum, legacy_adam):
        with subtest(make.args, make.func):
            law(fit(unbuilt, make()))


def case_fit_eagerly() -> None:
    law(fit(unbuilt, legacy_adam(), run_eagerly=True))
    law(fit(dense, momentum(global_clipnorm=0.05), run_eagerly=True))


def case_fit_several_steps_per_execution() -> None:
    law(fit(functional, adam(), steps_per_execution=2))


def case_train_on_batch() -> None:
    def train(feeds: list[Feed], optimizer: Callable[[], Any]) -> dict[str, np.ndarray]:
        model = unbuilt()
        model.compile(optimizer(), "mse")
        for feed in feeds:
            model.train_on_batch(inputs_of(model, feed), feed["y"])
        return remembered(model, model.optimizer)

    law(functools.partial(train, optimizer=legacy_momentum()))


def case_loops_that_clip() -> None:
    """Loops with a tape, ``clip_by_global_norm`` and ``apply_gradients``, in a function and in eager mode."""

    def train(feeds: list[Feed], optimizer: Callable[[], Any], function: bool) -> dict[str, np.ndarray]:
        model, applies = dense(), optimizer()

        def step(feed: Feed) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(feed["x"]) - feed["y"]) ** 2)
            gradients = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.05)[0]
            applies.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run = tf.function(step) if function else step
        for feed in feeds:
            run({n: tf.constant(v) for n, v in feed.items()})
        return remembered(model, applies)

    for make in (momentum, legacy_adam):
        for function in (True, False):
            with subtest(make.args, make.func, "in a function" if function else "eagerly"):
                law(functools.partial(train, optimizer=make(), function=function))


def case_minimize_of_a_loss() -> None:
    def train(feeds: list[Feed], optimizer: Callable[[], Any]) -> dict[str, np.ndarray]:
        model, applies = dense(), optimizer()
        for feed in feeds:
            applies.minimize(
                lambda feed=feed: tf.reduce_mean((model(feed["x"]) - feed["y"]) ** 2), model.trainable_variables
            )
        return remembered(model, applies)

    for make, options in ((adam, {"global_clipnorm": 0.05}), (legacy_momentum, {"clipnorm": 0.05})):
        with subtest(make.args, make.func):
            law(functools.partial(train, optimizer=make(**options)))


def overflowing() -> list[Feed]:
    """Return batches; rank 0's share of the second batch overflows in float16."""
    feeds = data(steps=STEPS)
    feeds[1]["y"][0] = 1e9
    return feeds


def case_mixed_precision() -> None:
    """Gradients are averaged outside the loss-scale optimizer, so all ranks leave a step out if one overflows."""
    half = {"dtype": "mixed_float16"}
    train = functools.partial(fit, functools.partial(dense, **half), remembers=weights_and_scale)

    def scaled(inner: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: tk().mixed_precision.LossScaleOptimizer(inner(), initial_scale=1024.0)

    law(fit(functools.partial(functional, **half), scaled(adam()), weights_and_scale), tolerance=1e-3)
    for make, options in ((momentum, {"global_clipnorm": 0.05}), (legacy_momentum, {"clipnorm": 0.05})):
        with subtest(make.args, make.func):
            law(train(scaled(make(**options))), tolerance=1e-3, feeds=overflowing())


@contextlib.contextmanager
def stderr() -> Iterator[io.StringIO]:
    with contextlib.redirect_stderr(io.StringIO()) as text:
        yield text


def case_compiled_training_is_not_compiled_and_says_so() -> None:
    with stderr() as said:
        law(fit(dense, momentum(clipnorm=0.05), jit_compile=True))
    told = said.getvalue().count("jit_compile")
    assert told == (tfdist.rank() == 0), said.getvalue()
    with without_tfdist():
        model = dense()
        model.compile("sgd", "mse", jit_compile=True)
        model.make_train_function()
        assert model.jit_compile
