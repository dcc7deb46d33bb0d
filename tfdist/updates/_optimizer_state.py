"""Optimizer state: what an optimizer keeps for itself beside its steps and rate, and what it was in the beginning."""

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
    """A variable of an optimizer's own.

    Attributes:
      variable: of TensorFlow.
      initial: the number that all its entries began with; None if it is not wanted.
    """

    variable: Any
    initial: Any


def slots(optimizer: Any, state: str, trained: Sequence[Any], others: Sequence[Any]) -> list[Slot]:
    """What is to be reset or averaged at a block's end.

    Args:
      optimizer: that has been built.
      state: ``reset``, ``average`` or ``keep``.
      trained: the variables that it was built for.
      others: variables that the blocks have given it.

    Raises:
      RuntimeError: it cannot be reset, because its beginning is not known.
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
    """The values of all variables of an optimizer of the same configuration, built for variables of one entry."""
    name = type(optimizer).__name__
    trained = optimizers.trained_by(optimizer) or trained
    if not (hasattr(optimizer, "from_config") and hasattr(optimizer, "build")):
        raise RuntimeError(
            f"block_state=reset: how the state of {name} began is not known in a tf.function: use an optimizer "
            "of Keras, or block_state=keep or average"
        )
    kind = type(trained[0]) if hasattr(trained[0], "path") else tf.Variable

    def build() -> list[Any]:
        stand_ins = [kind(tf.zeros([1] * len(v.shape), native(v).dtype), dtype=v.dtype, name="one") for v in trained]
        new = type(optimizer).from_config(optimizer.get_config())
        new.build(stand_ins)
        return [v.numpy() for v in optimizers.own_variables(new)]

    # A function that is being traced would take the variables for its own; it is this thread's.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()


def _constant(op: Any) -> Any:
    """The number that an initial value in a graph is made of; None if it is not made of one.

    (``tf.get_static_value`` would make it impossible to feed, which is how rank 0's values are set.)
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
            f"block_state=reset: {variable.name} of {type(optimizer).__name__} does not begin with one number: "
            "choose block_state=keep or average"
        )
    return array.flat[0]


_told: set[str] = set()


def _say_biased(optimizer: Any) -> None:
    name = type(optimizer).__name__
    if hasattr(optimizer, "beta_2") and name not in _told:
        _told.add(name)
        announce(
            f"block_state=reset: {name} of Keras corrects its moments by its number of steps, which is not "
            "reset: a block's first steps are up to three times as long as they were. block_state=keep or "
            "average leave them as they are"
        )
