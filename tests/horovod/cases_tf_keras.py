"""Horovod's interface for Keras, in a job in which TensorFlow's Keras is tf_keras."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist.horovod.keras as hvd
from tests.multirank.inside import everywhere
from tests.multirank.oracle import one_process

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
BATCH, ROWS = 12, 60


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of all ranks."""
    random = np.random.RandomState(5)
    x = random.randn(ROWS, 4).astype(np.float32)
    return x, (x @ random.randn(4, 2) + 0.1 * random.randn(ROWS, 2)).astype(np.float32)


def model(seed: int, optimizer: Any, wraps: bool = True, **options: Any) -> Any:
    """Return a compiled model of two layers."""
    tf.keras.utils.set_random_seed(seed)
    layers = tf.keras.layers
    made = tf.keras.Sequential([layers.Input([4]), layers.Dense(8, "tanh"), layers.Dense(2)])
    made.compile(hvd.DistributedOptimizer(optimizer, **options) if wraps else optimizer, "mse")
    return made


def fit(made: Any, batch: int, callbacks: Any = ()) -> None:
    """Train for two epochs, in the order of the data."""
    x, y = (part[RANK::SIZE] if batch < BATCH or SIZE == 1 else part for part in data())
    made.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))


def case_fit_is_that_of_one_process() -> None:
    kinds = (tf.keras.optimizers.Adam, tf.keras.optimizers.legacy.SGD)
    for kind in kinds:

        def compute() -> list[np.ndarray]:
            one = model(0, kind(0.05), wraps=False)  # noqa: B023
            fit(one, BATCH)
            return list(one.get_weights())

        wanted = one_process(compute)
        trained = model(RANK, kind(0.05))
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateScheduleCallback(0.05, multiplier=1.0),
        ]
        fit(trained, BATCH // SIZE, callbacks)
        for own, other in zip(trained.get_weights(), wanted, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-3, atol=2e-5, err_msg=str(kind))


def case_a_saved_model_and_elastic_state() -> None:
    folder = Path(hvd.broadcast_object(mkdtemp(), 0))
    trained = model(RANK, tf.keras.optimizers.Adam(0.05))
    fit(trained, BATCH // SIZE, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    if RANK == 0:
        trained.save(folder / "model.keras")
    hvd.allreduce(1.0, name="saved")
    loaded = hvd.load_model(folder / "model.keras")
    state = hvd.elastic.KerasState(loaded, epoch=RANK)
    state.sync()
    fit(loaded, BATCH // SIZE)
    found = everywhere(loaded.get_weights())
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
