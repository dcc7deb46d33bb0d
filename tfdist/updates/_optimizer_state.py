"""Optimizer state: an optimizer's own variables, without its steps and rate, and their initial values."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat.variables import native
from tfdist.core.log import announce
from tfdist.graph import function_state


class Slot(NamedTuple):
    """Variable of an optimizer, such as a momentum.

    Attributes:
      variable: the variable, as TensorFlow's.
      initial: initial value of all its entries, a number; None if it is not needed.
    """

    variable: Any
    initial: Any


def slots(optimizer: Any, state: str, trained: Sequence[Any], others: Sequence[Any]) -> list[Slot]:
    """Return the optimizer's variables that a block's end resets or averages.

    Args:
      optimizer: optimizer that has been built.
      state: ``reset``, ``average`` or ``keep``.
      trained: variables that the optimizer was built for.
      others: variables that blocks have added to the optimizer.

    Raises:
      RuntimeError: the state cannot be reset, because its initial value is unknown.
    """
    if state == "keep":
        return []
    optimizer = optimizers.chain(optimizer)[-1]
    every = optimizers.own_variables(optimizer)
    left_out = {id(native(v)) for v in others} | {id(v) for v in optimizers.not_state(optimizer)}
    chosen = [n for n, v in enumerate(every) if id(v) not in left_out]
    if state == "average":
        return [Slot(every[n], None) for n in chosen if every[n].dtype.is_floating]
    if not chosen:
        return []
    if function_state.in_session():
        beginnings = {n: _constant(every[n].initial_value.op) for n in chosen}
    else:
        _say_biased(optimizer)
        beginnings = dict(enumerate(_of_a_new_one(optimizer, trained)))
    return [Slot(every[n], _uniform(beginnings.get(n), every[n], optimizer)) for n in chosen]


def _of_a_new_one(optimizer: Any, trained: Sequence[Any]) -> list[Any]:
    """Return the values of all variables of a new optimizer with the same configuration, built for tiny variables."""
    name = type(optimizer).__name__
    trained = optimizers.trained_by(optimizer) or trained
    if not (hasattr(optimizer, "from_config") and hasattr(optimizer, "build")):
        raise RuntimeError(
            f"block_state=reset: the initial state of {name} is unknown in a tf.function. Use an optimizer of Keras, "
            "or block_state=keep or average"
        )
    kind = type(trained[0]) if hasattr(trained[0], "path") else tf.Variable

    def build() -> list[Any]:
        stand_ins = [kind(tf.zeros([1] * len(v.shape), native(v).dtype), dtype=v.dtype, name="one") for v in trained]
        new = type(optimizer).from_config(optimizer.get_config())
        new.build(stand_ins)
        return [v.numpy() for v in optimizers.own_variables(new)]

    # In another thread, because a function that this thread traces would capture the new variables.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()


def _constant(op: Any) -> Any:
    """Return the number with which an initial value in a graph is filled; None if it is not filled with one number.

    After ``tf.get_static_value`` the tensor could not be fed any more, and rank 0's values are set by a feed.
    """
    if op.type == "Const":
        return tf.make_ndarray(op.get_attr("value"))
    if op.type in ("ZerosLike", "OnesLike"):
        return np.zeros(1) if op.type == "ZerosLike" else np.ones(1)
    behind = {"Fill": 1, "Identity": 0, "Cast": 0}.get(op.type)
    return None if behind is None else _constant(op.inputs[behind].op)


def _uniform(value: Any, variable: Any, optimizer: Any) -> Any:
    array = None if value is None else np.asarray(value)
    if array is None or not array.size or not np.all(array == array.flat[0]):
        raise RuntimeError(
            f"block_state=reset: the entries of {variable.name} of {type(optimizer).__name__} do not begin with the "
            "same number. Choose block_state=keep or average"
        )
    return array.flat[0]


_told: set[str] = set()


def _say_biased(optimizer: Any) -> None:
    name = type(optimizer).__name__
    if hasattr(optimizer, "beta_2") and name not in _told:
        _told.add(name)
        announce(
            f"block_state=reset: {name} of Keras corrects its moments by its number of steps, which is not reset. So a "
            "block's first steps are up to three times as long as usual. block_state=keep or average avoid this"
        )
