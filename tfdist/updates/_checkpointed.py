"""Variables of tfdist's own that belong into checkpoints: of a graph, or of an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def graph_variable(name: str, make: Callable[[], tf.Tensor]) -> Any:
    """One of a session's graph, of which a Saver that is made later takes all.

    Args:
      name: in no scope.
      make: of its first value, in the graph.
    """
    with tf.init_scope(), tf.compat.v1.name_scope(None):
        return tf.compat.v1.Variable(make(), trainable=False, use_resource=True, name=name)


def track(optimizer: Any, name: str, variable: Any) -> None:
    """Have an optimizer's checkpoint hold a variable that is not its own.

    Args:
      optimizer: of Keras, or one of which ``tf.train.Checkpoint`` saves all it tracks.
      name: in the checkpoint.
      variable: of TensorFlow.
    """
    if hasattr(optimizer, "stateless_apply"):  # Keras 3, which knows variables of its own kind alone
        with tf.init_scope():
            of_keras = sys.modules["keras"].Variable(
                variable.numpy(), dtype=variable.dtype.name, trainable=False, name=name
            )
        of_keras._value = variable
        optimizer._track_variable(of_keras)
    elif hasattr(optimizer, "_track_trackable"):
        optimizer._track_trackable(variable, name, overwrite=True)
