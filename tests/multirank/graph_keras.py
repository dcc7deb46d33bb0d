"""Keras in a TF1 session: ``TF_USE_LEGACY_KERAS=1 mpirun -n N python -m tests.multirank.graph_keras``.

It runs in its own process: eager execution cannot be disabled in one that has begun with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import assert_program_law
from tests.multirank.cases_tf_keras import STEPS, Train, dense, fit, functional, inputs_of, legacy_adam, legacy_momentum
from tests.multirank.oracle import BATCH, Feed, v1

v1.disable_eager_execution()


def weights(model: Any, optimizer: Any) -> dict[str, np.ndarray]:
    """Return the weights of the model and of its optimizer, which Keras has wrapped if it is TensorFlow's."""
    kept = optimizer.optimizer.variables() if hasattr(optimizer, "optimizer") else optimizer.weights
    return {str(k): v for k, v in enumerate(tf.keras.backend.batch_get_value([*model.weights, *kept]))}


def fresh(seed: int) -> None:
    """Start a new graph and session, and set the seed."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(seed)


law = functools.partial(assert_program_law, steps=STEPS, set_seed=fresh)
fit = functools.partial(fit, remembers=weights)


def v1_momentum() -> Any:
    return v1.train.MomentumOptimizer(0.1, 0.9)


def on_batches(optimizer: Callable[[], Any]) -> Train:
    """Return training by ``train_on_batch``, after rank 0 alone has used its model and set weights."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model = dense()
        model.compile(optimizer(), "mse")
        first = tfdist.rank() == 0 or len(feeds[0]["x"]) == BATCH  # also the one process with the whole batch
        if first:
            model.predict(feeds[0]["x"])
            model.set_weights([0.5 * value for value in model.get_weights()])
        for feed in feeds:
            model.train_on_batch(inputs_of(model, feed), feed["y"])
        if first:  # on this rank only
            model.evaluate(feeds[0]["x"], feeds[0]["y"], verbose=0)
        return weights(model, model.optimizer)

    return train


def from_dataset(feeds: list[Feed]) -> dict[str, np.ndarray]:
    """Train with ``fit`` of a tf.data pipeline, which is fed as tensors."""
    model = dense()
    model.compile(legacy_momentum(clipnorm=0.05)(), "mse")
    rows = {n: np.concatenate([feed[n] for feed in feeds]) for n in "xy"}
    model.fit(tf.data.Dataset.from_tensor_slices((rows["x"], rows["y"])).batch(len(feeds[0]["x"])), verbose=0)
    return weights(model, model.optimizer)


def main() -> None:
    """Check every style against one process."""
    assert tf.keras.__name__.startswith("tf_keras") or "tf_keras" in tf.keras.__file__, tf.keras
    for optimizer in (legacy_adam(), legacy_momentum(), v1_momentum):
        law(fit(functional, optimizer))
    law(fit(dense, legacy_momentum(global_clipnorm=0.05)))
    law(from_dataset)
    law(on_batches(legacy_adam()))
    print("fine")


if __name__ == "__main__":
    main()
