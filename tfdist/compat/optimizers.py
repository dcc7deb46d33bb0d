"""Optimizers: which optimizer wraps which, their variables, and additional variables in their checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.variables import native

# Attributes that hold wrapped optimizers: of Keras's LossScaleOptimizer, of tf_keras, of TensorFlow 1, and of Keras's
# MultiOptimizer (keras/src/optimizers/{loss_scale,multi}_optimizer.py; …/training/experimental).
_INNER = ("inner_optimizer", "_optimizer", "_opt", "_inner_optimizers")
_RATES = ("_learning_rate", "_current_learning_rate")
# Variables that do not come from the last gradients: steps, rates, averages for evaluation, and the gradients of an
# incomplete batch.
_NOT_STATE = ("_iterations", *_RATES)
_MOVING_AVERAGES = "_model_variables_moving_average"
_LISTS_NOT_STATE = (_MOVING_AVERAGES, "_accumulated_gradients")


def _inner(optimizer: Any) -> list[Any]:
    found: Any = next((inner for name in _INNER if (inner := getattr(optimizer, name, None)) is not None), [])
    return list(found) if isinstance(found, list | tuple) else [found]


def tree(optimizer: Any) -> list[Any]:
    """Return an optimizer, the optimizers that it wraps, and so on."""
    return [optimizer, *(one for inner in _inner(optimizer) for one in tree(inner))]


def innermost(optimizer: Any) -> list[Any]:
    """Return the optimizers of a tree that wrap no other: they compute the updates."""
    return [one for one in tree(optimizer) if not _inner(one)]


def listed(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer lists: Keras has a list, TensorFlow 1 a method."""
    own = getattr(optimizer, "variables", ())
    return list(own() if callable(own) else own)


def own_variables(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer lists, as TensorFlow's variables."""
    return [native(variable) for variable in listed(optimizer)]


def variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer and of the wrapped ones, with their rates, which tf_keras does not list."""
    found: dict[int, Any] = {}
    for one in tree(optimizer):
        rates = [*(getattr(one, name, None) for name in _RATES), *getattr(one, "_hyper", {}).values()]
        known = [*own_variables(one), *map(native, rates)]
        found.update({id(variable): variable for variable in known if hasattr(variable, "assign")})
    return list(found.values())


def not_state(optimizer: Any) -> list[Any]:
    """Return the variables of a Keras optimizer that do not come from the last gradients."""
    one = [getattr(optimizer, name, None) for name in _NOT_STATE]
    several = [v for name in _LISTS_NOT_STATE for v in getattr(optimizer, name, None) or ()]
    return [native(variable) for variable in [*one, *several] if variable is not None]


def behind_own(optimizer: Any, added: int) -> tuple[list[Any], list[Any]]:
    """Return the variables of a Keras 3 optimizer, without those that were ``added`` to it, in two parts.

    First come its own, behind them those of wrapped optimizers. What is added stands between
    (keras/src/optimizers/base_optimizer.py, ``_variables``; …/loss_scale_optimizer.py, ``variables``).
    """
    own = len(optimizer._variables)
    return listed(optimizer)[: own - added], listed(optimizer)[own:]


def moving_averages(optimizer: Any) -> list[Any]:
    """Return the moving averages of weights that a Keras optimizer with ``use_ema`` keeps; empty for others."""
    return [v for one in tree(optimizer) for v in getattr(one, _MOVING_AVERAGES, None) or ()]


def trained_by(optimizer: Any) -> list[Any]:
    """Return the variables that a Keras optimizer was built for; empty if it does not list them."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def of_keras_3(optimizer: Any) -> bool:
    """Return whether an optimizer is of Keras 3 (keras/src/backend/tensorflow/optimizer.py), not tf_keras or TF 1."""
    return hasattr(optimizer, "stateless_apply")


def by_single_rows(optimizer: Any, tables: Sequence[Any]) -> str:
    """Return the class of a Keras 3 optimizer of tables that squares or clips each row of ``IndexedSlices`` by itself.

    Others, for which the result is empty, compute with the sum of equal rows (keras/src/backend/tensorflow/sparse.py).
    """
    clips = ("clipnorm", "global_clipnorm", "clipvalue")
    for one in (_of_variable(optimizer, table) for table in tables):
        if of_keras_3(one) and (
            type(one) is not sys.modules["keras"].optimizers.SGD or any(getattr(one, name) for name in clips)
        ):
            return type(one).__name__
    return ""


def _of_variable(optimizer: Any, variable: Any) -> Any:
    """Return the optimizer that computes a variable's updates (…/multi_optimizer.py, ``build``)."""
    chosen = getattr(optimizer, "_optimizer_map", None)
    inner = [chosen(variable)] if chosen is not None else _inner(optimizer)
    return _of_variable(inner[0], variable) if inner else optimizer


def rate(optimizer: Any) -> Any:
    """Return the present learning rate of an optimizer of TensorFlow 1 or tf_keras; None if there is no such attribute.

    (tensorflow/python/training/*.py; tf_keras/src/optimizers/optimizer.py and .../legacy/optimizer_v2.py.)
    """
    inner = innermost(optimizer)[0]
    if hasattr(inner, "_decayed_lr"):
        return inner._decayed_lr(tf.float32)
    found = getattr(inner, _RATES[0], getattr(inner, "_lr", None))
    if not callable(found) or hasattr(found, "dtype"):
        return found
    return found(inner.iterations) if hasattr(inner, "iterations") else found()  # a schedule of tf_keras, a function


def has_rate(optimizer: Any) -> bool:
    """Return whether ``rate`` finds the learning rate of an optimizer of TensorFlow 1."""
    inner = innermost(optimizer)[0]
    return any(getattr(inner, name, None) is not None for name in (_RATES[0], "_lr"))


def scales_the_loss(optimizer: Any) -> str:
    """Return the name of the class that scales the loss, of this optimizer or one inside it; empty if there is none."""
    kinds = (kind.__name__ for one in tree(optimizer) for kind in type(one).__mro__)
    return next((name for name in kinds if name.endswith("LossScaleOptimizer")), "")


def track(optimizer: Any, name: str, what: Any) -> None:
    """Add a variable that is not an optimizer's own, or all that a module tracks, to the optimizer's checkpoint.

    Args:
      optimizer: optimizer of Keras (keras/src/optimizers/base_optimizer.py), or one that tracks its variables for
        ``tf.train.Checkpoint`` (tensorflow/python/trackable/base.py); other optimizers have no checkpoint.
      name: name in the checkpoint.
      what: variable of TensorFlow, or ``tf.Module``.
    """
    if of_keras_3(optimizer) and not isinstance(what, tf.Module):  # it takes only Keras's variables
        with tf.init_scope():
            of_keras = sys.modules["keras"].Variable(what.numpy(), dtype=what.dtype.name, trainable=False, name=name)
        of_keras._value = what
        optimizer._track_variable(of_keras)
    elif hasattr(optimizer, "_track_trackable"):
        optimizer._track_trackable(what, name, overwrite=True)
