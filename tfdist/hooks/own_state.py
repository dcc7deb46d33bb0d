"""Hooks where Keras makes variables that each rank keeps for itself: statistics of batches, recurrent states, metrics.

The ranks do not compare these, though the loss may read them. Metrics mark themselves since Keras 3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat.variables import keep_for_each_rank
from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps

_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def _statistics(layer: Any) -> list[Any]:
    return [v for name in _STATISTICS if (v := getattr(layer, name, None)) is not None]


def _states(layer: Any) -> list[Any]:
    return [v for v in tf.nest.flatten(layer.states) if hasattr(v, "assign")]


# Module, class, its method that makes the variables, and a function that returns them.
_MADE: tuple[tuple[str, str, str, Callable[[Any], Iterable[Any]]], ...] = (
    ("keras.src.layers.normalization.batch_normalization", "BatchNormalization", "build", _statistics),
    ("keras.src.layers.rnn.rnn", "RNN", "_create_state_variables", _states),
    ("keras.src.metrics.metric", "Metric", "add_variable", lambda metric: metric.variables),
    ("tf_keras.src.layers.normalization.batch_normalization", "BatchNormalizationBase", "build", _statistics),
    ("tf_keras.src.layers.rnn.base_rnn", "RNN", "reset_states", _states),
)


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    for module, owner, method, made in _MADE:
        patches.when_imported(module, _noting(patches, owner, method, made))


def _noting(patches: Patches, owner: str, method: str, made: Callable[[Any], Iterable[Any]]) -> Callable[[Any], None]:
    def make(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        keep_for_each_rank(made(self))
        return result

    return lambda module: patches.replace(getattr(module, owner), method, make, ("self",))
