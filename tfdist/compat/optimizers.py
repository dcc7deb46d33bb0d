"""Optimizers: which one wraps which, what they keep, and what their checkpoints hold beside that."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tfdist.compat.variables import native

# An optimizer that wraps another has it in one of these: Keras's LossScaleOptimizer and our LARC, tf_keras's, and
# TensorFlow 1's (keras/src/optimizers/loss_scale_optimizer.py; tensorflow/python/training/experimental).
_INNER = ("inner_optimizer", "_optimizer", "_opt")
_RATES = ("_learning_rate", "_current_learning_rate")
# What an optimizer keeps that is not of the last gradients: steps, rates, what is to be evaluated, and a batch that is
# not complete yet.
_NOT_STATE = ("_iterations", *_RATES)
_LISTS_NOT_STATE = ("_model_variables_moving_average", "_accumulated_gradients")


def chain(optimizer: Any) -> list[Any]:
    """An optimizer, the one that it wraps, if it does, and so on."""
    found = [optimizer]
    while (inner := next((i for n in _INNER if (i := getattr(found[-1], n, None)) is not None), None)) is not None:
        found.append(inner)
    return found


def listed(optimizer: Any) -> list[Any]:
    """What an optimizer keeps, as it says itself: Keras has a list, TensorFlow 1 a method."""
    own = getattr(optimizer, "variables", ())
    return list(own() if callable(own) else own)


def own_variables(optimizer: Any) -> list[Any]:
    """The same as TensorFlow's variables."""
    return [native(variable) for variable in listed(optimizer)]


def variables(optimizer: Any) -> list[Any]:
    """What an optimizer and those that it wraps keep, their rates included (which tf_keras does not count)."""
    found: dict[int, Any] = {}
    for one in chain(optimizer):
        rates = [*(getattr(one, name, None) for name in _RATES), *getattr(one, "_hyper", {}).values()]
        known = [*own_variables(one), *map(native, rates)]
        found.update({id(variable): variable for variable in known if hasattr(variable, "assign")})
    return list(found.values())


def not_state(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of Keras that do not come of the last gradients."""
    one = [getattr(optimizer, name, None) for name in _NOT_STATE]
    several = [v for name in _LISTS_NOT_STATE for v in getattr(optimizer, name, None) or ()]
    return [native(variable) for variable in [*one, *several] if variable is not None]


def trained_by(optimizer: Any) -> list[Any]:
    """The variables that an optimizer of Keras was built for; none if it does not know."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def of_keras_3(optimizer: Any) -> bool:
    """Whether it is one of Keras 3 (keras/src/backend/tensorflow/optimizer.py), and not of tf_keras or TensorFlow 1."""
    return hasattr(optimizer, "stateless_apply")


def rate(optimizer: Any) -> Any:
    """The learning rate of an optimizer of TensorFlow 1 or tf_keras, as it applies it now; None if it does not tell.

    (tensorflow/python/training/*.py; tf_keras/src/optimizers/optimizer.py and .../legacy/optimizer_v2.py.)
    """
    inner = chain(optimizer)[-1]
    if hasattr(inner, "_decayed_lr"):
        return inner._decayed_lr(tf.float32)
    found = getattr(inner, _RATES[0], getattr(inner, "_lr", None))
    if not callable(found) or hasattr(found, "dtype"):
        return found
    return found(inner.iterations) if hasattr(inner, "iterations") else found()  # a schedule of tf_keras, a function


def scales_the_loss(optimizer: Any) -> str:
    """The name of the class that scales the loss by itself, if this optimizer or one inside it is one; else empty."""
    kinds = (kind.__name__ for one in chain(optimizer) for kind in type(one).__mro__)
    return next((name for name in kinds if name.endswith("LossScaleOptimizer")), "")


def track(optimizer: Any, name: str, variable: Any) -> None:
    """Have an optimizer's checkpoint hold a variable that is not its own.

    Args:
      optimizer: of Keras (keras/src/optimizers/base_optimizer.py), or one of which ``tf.train.Checkpoint`` saves all it
        tracks (tensorflow/python/trackable/base.py); others have no checkpoint.
      name: in the checkpoint.
      variable: of TensorFlow.
    """
    if of_keras_3(optimizer):  # which knows variables of its own kind alone
        with tf.init_scope():
            of_keras = sys.modules["keras"].Variable(
                variable.numpy(), dtype=variable.dtype.name, trainable=False, name=name
            )
        of_keras._value = variable
        optimizer._track_variable(of_keras)
    elif hasattr(optimizer, "_track_trackable"):
        optimizer._track_trackable(variable, name, overwrite=True)


def track_all(optimizer: Any, name: str, holder: tf.Module) -> None:
    """Have a checkpoint hold what a module tracks, too; see ``track``."""
    if hasattr(optimizer, "_track_trackable"):
        optimizer._track_trackable(holder, name, overwrite=True)
