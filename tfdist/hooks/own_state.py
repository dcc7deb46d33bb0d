"""Hooks where variables are made that each rank keeps for itself: statistics, recurrent states, metrics, random states.

The ranks do not compare these, though the loss may read them. Metrics mark themselves since Keras 3.5.
"""

from __future__ import annotations

import functools
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
# Class, its method that makes the variables, their attributes, and what is noted of them. (The statistics of tf_keras
# are noted by ``ON_READ``.)
_MADE: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("keras.src.layers.normalization.batch_normalization:BatchNormalization", "build", _STATISTICS, STATISTIC),
    ("keras.src.layers.rnn.rnn:RNN", "_create_state_variables", ("states",), EACH_RANK),
    ("keras.src.metrics.metric:Metric", "add_variable", ("variables",), EACH_RANK),
    ("keras.src.random.seed_generator:SeedGenerator", "__init__", ("state",), RANDOM),
    ("tensorflow.python.ops.stateful_random_ops:Generator", "__init__", ("state",), RANDOM),
    ("tf_keras.src.layers.rnn.base_rnn:RNN", "reset_states", ("states",), EACH_RANK),
    ("tf_keras.src.layers.rnn.base_conv_rnn:ConvRNN", "reset_states", ("states",), EACH_RANK),
)


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    # The package has the class in every version; the module that defines it has moved in Keras 3.16.
    where = "keras.src.backend.tensorflow:Variable"
    patches.when_imported(where, patches.replace, "_deferred_initialize", after(hand_on_notes), ("self",))
    there: dict[type, Callable[[Any], None]] = {}
    for where, method, attributes, what in _MADE:
        noted = functools.partial(_note, attributes, what)
        patches.when_imported(where, patches.replace, method, after(noted), ("self",))
        module, _, owner = where.partition(":")
        if module in sys.modules:
            there[getattr(sys.modules[module], owner)] = noted
    for one in existing(*there):  # made before the import of tfdist
        next(noted for kind, noted in there.items() if isinstance(one, kind))(one)


def _note(attributes: tuple[str, ...], what: str, one: Any) -> None:
    found = tf.nest.flatten([getattr(one, name, None) for name in attributes])
    note((variable for variable in found if hasattr(variable, "assign")), what)
