"""KerasTuner: every rank searches, with the same seed and a directory of its own.

The ranks then try the same hyperparameters in the same order and train each trial together. The scores are means over
the ranks, so all ranks find the same best hyperparameters.
"""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import keras_tuner
import numpy as np

from tests.ecosystem.programs import STEPS, assert_law
from tests.multirank.oracle import Feed, data

TRIALS = 2


def build(parameters: Any) -> Any:
    """Return a model; its size and learning rate are the hyperparameters of the search."""
    units, rate = parameters.Choice("units", [3, 5, 7, 9]), parameters.Float("rate", 0.01, 0.1, sampling="log")
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(units, "tanh"), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(rate, epsilon=1e-3), "mse")
    return model


def search(feeds: list[Feed], **options: Any) -> dict[str, np.ndarray]:
    """Train on all batches but the last, choose by the last; return the trials and the weights of the best model."""
    x, y = (np.concatenate([feed[n] for feed in feeds[:-1]]) for n in "xy")
    with tempfile.TemporaryDirectory() as directory:
        tuner = keras_tuner.RandomSearch(
            build,
            objective="val_loss",
            max_trials=TRIALS,
            seed=5,
            directory=directory,
            project_name="search",
            **options,
        )
        tuner.search(
            x,
            y,
            batch_size=len(feeds[0]["x"]),
            shuffle=False,
            epochs=2,
            validation_data=(feeds[-1]["x"], feeds[-1]["y"]),
            verbose=0,
        )
        trials = sorted(tuner.oracle.trials.values(), key=lambda trial: str(trial.trial_id))
        best = tuner.get_best_models()[0]
    tried = np.array([[*trial.hyperparameters.values.values(), trial.score] for trial in trials])
    assert tried.shape == (TRIALS, 3) and tried[0, 0] != tried[1, 0], tried
    return {"tried": tried, **{str(k): v for k, v in enumerate(best.get_weights())}}


def case_random_search() -> None:
    assert_law(search, set_seed=keras.utils.set_random_seed, feeds=data(steps=STEPS))
