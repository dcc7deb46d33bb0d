"""tf_keras, the package that continues Keras 2: what the programs of ``law/fit_tf_keras.py`` cannot show."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np

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


def dense(**options: Any) -> Any:
    layers = [tk().layers.Input([5]), tk().layers.Dense(4, "tanh", **options), tk().layers.Dense(3, dtype="float32")]
    return tk().Sequential(layers)


def fit(optimizer: Callable[[], Any], dtype: str = "float32", **options: Any) -> Train:
    """Return a program that compiles a model with these options, fits it, and returns its weights and loss scale."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model = dense(dtype=dtype)
        model.compile(optimizer(), "mse", **options)
        x, y = (np.concatenate([feed[n] for feed in feeds]) for n in "xy")
        model.fit(x, y, batch_size=len(feeds[0]["x"]), shuffle=False, verbose=0)
        scale = getattr(model.optimizer, "loss_scale", None)
        found = {str(k): v for k, v in enumerate(model.get_weights())}
        return found if scale is None else {**found, "scale": scale.numpy()}

    return train


def case_shares_of_data() -> None:
    """TFDIST_AUTOSHARD=1 gives each rank its part of the arrays that all ranks have."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        rows = len(feeds[0]["x"])
        x, y = (np.concatenate([feed[name] for feed in data(steps=STEPS)]) for name in "xy")
        model = dense()
        model.compile(tk().optimizers.SGD(0.1), "mse")
        model.fit(x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0, validation_data=(x, y))
        return {str(k): w for k, w in enumerate(model.get_weights())}

    with settings(autoshard=True):
        law(train)


def case_mixed_precision() -> None:
    """Gradients are averaged outside the loss-scale optimizer, so all ranks leave a step out if one overflows."""
    overflowing = data(steps=STEPS)
    overflowing[1]["y"][0] = 1e9  # in float16, of rank 0's share
    optimizers = tk().optimizers
    for make, feeds in (
        (functools.partial(optimizers.Adam, 0.05, epsilon=1e-3), None),
        (functools.partial(optimizers.SGD, 0.1, momentum=0.9, global_clipnorm=0.05), overflowing),
        (functools.partial(optimizers.legacy.SGD, 0.1, momentum=0.9, clipnorm=0.05), overflowing),
    ):

        def scaled(make: Callable[[], Any] = make) -> Any:
            return tk().mixed_precision.LossScaleOptimizer(make(), initial_scale=1024.0)

        with subtest(make.func):
            law(fit(scaled, "mixed_float16"), 1e-3, feeds)


def case_compiled_training_is_not_compiled_and_says_so() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        law(fit(lambda: tk().optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05), jit_compile=True))
    told = said.getvalue().count("jit_compile")
    assert told == (tfdist.rank() == 0), said.getvalue()
    with without_tfdist():
        model = dense()
        model.compile("sgd", "mse", jit_compile=True)
        model.make_train_function()
        assert model.jit_compile
