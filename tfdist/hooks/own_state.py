"""Hooks where variables are made that each rank keeps for itself: statistics, recurrent states, metrics, random states.

The ranks do not compare these, though the loss may read them. Metrics mark themselves since Keras 3.5.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.objects import existing
from tfdist.compat.variables import EACH_RANK, RANDOM, STATISTIC, hand_on_notes, note
from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches, after
from tfdist.training.steps import Steps

_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def _statistics(layer: Any) -> None:
    note((v for name in _STATISTICS if (v := getattr(layer, name, None)) is not None), STATISTIC)


def _states(layer: Any) -> None:
    note((v for v in tf.nest.flatten(layer.states) if hasattr(v, "assign")), EACH_RANK)


def _totals(metric: Any) -> None:
    note(metric.variables, EACH_RANK)


def _random(generator: Any) -> None:
    note((v for name in ("state", "_state_var") if hasattr(v := getattr(generator, name, None), "assign")), RANDOM)


# Class, its method that makes the variables, and a function that notes them. The statistics of tf_keras are noted by
# ``ON_READ``.
_MADE: tuple[tuple[str, str, Callable[[Any], None]], ...] = (
    ("keras.src.backend.tensorflow.core:Variable", "_deferred_initialize", hand_on_notes),
    ("keras.src.layers.normalization.batch_normalization:BatchNormalization", "build", _statistics),
    ("keras.src.layers.rnn.rnn:RNN", "_create_state_variables", _states),
    ("keras.src.metrics.metric:Metric", "add_variable", _totals),
    ("keras.src.random.seed_generator:SeedGenerator", "__init__", _random),
    ("tensorflow.python.ops.stateful_random_ops:Generator", "__init__", _random),
    ("tf_keras.src.layers.rnn.base_rnn:RNN", "reset_states", _states),
    ("tf_keras.src.layers.rnn.base_conv_rnn:ConvRNN", "reset_states", _states),
)


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""

    there: dict[type, Callable[[Any], None]] = {}
    for where, method, noted in _MADE:
        patches.when_imported(where, patches.replace, method, after(noted), ("self",))
        module, _, owner = where.partition(":")
        if module in sys.modules:
            there[getattr(sys.modules[module], owner)] = noted
    for one in existing(*there):  # made before the import of tfdist
        next(noted for kind, noted in there.items() if isinstance(one, kind))(one)
