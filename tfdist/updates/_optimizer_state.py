"""Optimizer state: an optimizer's own variables, without its steps and rate, and their initial values."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat.variables import native
from tfdist.core.log import announce
from tfdist.graph import function_state
from tfdist.graph.job import Job, alone


class Slot(NamedTuple):
    """Variable of an optimizer, such as a momentum.

    Attributes:
      variable: the variable, as TensorFlow's.
      initial: how it begins: a number that fills it, or a trained variable of which it is a copy; None if it is not
        needed.
    """

    variable: Any
    initial: Any


def slots(optimizer: Any, state: str, trained: Sequence[Any], others: Sequence[Any], job: Job) -> list[Slot]:
    """Return the optimizer's variables that a block's end resets or averages.

    Args:
      optimizer: optimizer that has been built, and wraps no other.
      state: ``reset`` or ``average``.
      trained: variables that the optimizer was built for.
      others: variables that blocks have added to the optimizer.
      job: the ranks and settings.

    Raises:
      RuntimeError: the state cannot be reset, because its initial value is unknown.
    """
    every = optimizers.own_variables(optimizer)
    left_out = {id(native(v)) for v in others} | {id(v) for v in optimizers.not_state(optimizer)}
    chosen = [n for n, v in enumerate(every) if id(v) not in left_out]
    if state == "average":
        return [Slot(every[n], None) for n in chosen if every[n].dtype.is_floating]
    if not chosen:
        return []
    if function_state.in_session():
        beginnings = {n: _uniform(_constant(every[n].initial_value.op)) for n in chosen}
    else:
        if hasattr(optimizer, "beta_2"):
            _say_biased(type(optimizer).__name__)
        beginnings = _of_new_ones(optimizer, optimizers.trained_by(optimizer) or trained, job)
    for n in chosen:
        if beginnings.get(n) is None:
            raise RuntimeError(
                f"block_state=reset: {every[n].name} of {type(optimizer).__name__} begins neither with one number in "
                "all entries, nor as a copy of a trained variable. Choose block_state=keep or average"
            )
    return [Slot(every[n], beginnings[n]) for n in chosen]


def _of_new_ones(optimizer: Any, trained: Sequence[Any], job: Job) -> dict[int, Any]:
    """Return how the variables of an optimizer begin, by their positions; None for other beginnings than of ``Slot``.

    Two new optimizers with the same configuration are built for tiny variables. A variable that has the same number in
    both is filled with it. One that has each time the number of one of the tiny variables is a copy of it.
    """
    name = type(optimizer).__name__
    if not (hasattr(optimizer, "from_config") and hasattr(optimizer, "build")):
        raise RuntimeError(
            f"block_state=reset: the initial state of {name} is unknown in a tf.function. Use an optimizer of Keras, "
            "or block_state=keep or average"
        )
    kind = type(trained[0]) if hasattr(trained[0], "path") else tf.Variable

    def build(number: int) -> tuple[list[Any], list[Any]]:
        numbers = range(number * len(trained), (number + 1) * len(trained))
        values = [tf.fill([1] * len(v.shape), _different(n)) for n, v in zip(numbers, trained, strict=True)]
        values = [tf.cast(value, native(v).dtype) for value, v in zip(values, trained, strict=True)]
        new = type(optimizer).from_config(optimizer.get_config())
        with alone(job, "the beginning of an optimizer's state"):  # nothing is added to these optimizers
            new.build([kind(value, dtype=v.dtype, name="one") for value, v in zip(values, trained, strict=True)])
        return [v.numpy() for v in values], [v.numpy() for v in optimizers.own_variables(new)]

    # In another thread, because a function that this thread traces would capture the new variables.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        (values, first), (other_values, second) = thread.map(build, (0, 1))
    found: dict[int, Any] = {}
    for n, (one, other) in enumerate(zip(first, second, strict=True)):
        pairs = zip(trained, values, other_values, strict=True)
        copies = (native(v) for v, a, b in pairs if np.array_equal(one, a) and np.array_equal(other, b))
        found[n] = _uniform(one) if np.array_equal(one, other) else next(copies, None)
    return found


def _different(n: int) -> float:
    """Return a number below 1 that differs from those of other n, in bfloat16, too: it has 7 bits behind the first."""
    exponent, fraction = divmod(n, 128)
    return float(2.0 ** -(exponent + 1) * (1.0 + fraction / 128))


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


def _uniform(value: Any) -> Any:
    """Return the number in all entries of an array; None if there is no such number, or no array."""
    array = np.zeros(0) if value is None else np.asarray(value)
    return array.flat[0] if array.size and np.all(array == array.flat[0]) else None


@functools.cache
def _say_biased(name: str) -> None:
    """Log once for each kind of optimizer that a reset makes its moments too large."""
    announce(
        f"block_state=reset: {name} of Keras corrects its moments by its number of steps, which is not reset. So a "
        "block's first steps are up to three times as long as usual. block_state=keep or average avoid this"
    )
