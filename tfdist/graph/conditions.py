"""Conditions in graphs under construction: those that can do what stands around them can, and what they depend on."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import control_flow_around, is_symbolic
from tfdist.core.program_line import foreign_file
from tfdist.graph import function_state
from tfdist.graph.traversal import ancestors, outside

_OWN = re.compile("Random|Iterator|PyFunc|ReadFile|Dequeue|DecodeCSV")


def do_if(condition: tf.Tensor, build: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Have something done when a condition is true.

    ``tf.cond``, in a session's graph of TensorFlow 1's kind: it can set reference variables, which no function can.
    (tensorflow/python/ops/control_flow_util_v2.py: the kind follows a switch that the script may have left either way.)

    Args:
      condition: scalar, bool.
      build: builds what is done, and returns a scalar bool behind it.

    Returns:
      What ``build`` returns, or False.
    """
    v1 = tf.compat.v1
    in_functions = v1.control_flow_v2_enabled()
    if in_functions and function_state.in_session():
        v1.disable_control_flow_v2()
    try:
        return tf.cond(condition, build, lambda: tf.constant(False))
    finally:
        if in_functions:
            v1.enable_control_flow_v2()


class _Around(threading.local):
    def __init__(self) -> None:
        self.conditions: list[Any] = []


_around = _Around()


@contextlib.contextmanager
def building(condition: Any) -> Iterator[None]:
    """What is built meanwhile, in functions, is done if a tensor is true."""
    _around.conditions.append(condition)
    try:
        yield
    finally:
        _around.conditions.pop()


def own_condition(exchanged: set[tf.Operation]) -> str:
    """Which condition around what is under construction depends on this rank's own values, in words; empty: none.

    Args:
      exchanged: operations whose results all ranks have alike.
    """
    around = control_flow_around(tf.compat.v1.get_default_graph())
    conditions = [*_around.conditions, *(getattr(own, "pred", None) for own in around)]
    for condition in conditions:
        if condition is not None and is_symbolic(condition) and _of_own_values(condition, exchanged):
            return f"{condition.op.name!r}{_line(condition.op)}"
    return ""


def _of_own_values(tensor: Any, exchanged: set[tf.Operation]) -> bool:
    """Whether a tensor is made of what this rank alone has: its batch, or numbers that it draws.

    A script's own scalars are taken for the same on all ranks: a step's number, or whether it is the last.
    """
    for op in ancestors([tensor.op], stop=exchanged.__contains__, control=False):
        if op in exchanged:
            continue
        if _OWN.search(op.type) or (op.type == "Const" and _batch(op.outputs[0])):  # (a small batch is a constant)
            return True
        if op.type == "Placeholder" and outside(op.outputs[0]) is op.outputs[0]:
            value = op.outputs[0]
            if value.dtype.is_floating or (value.dtype not in (tf.resource, tf.variant) and value.shape.rank != 0):
                return True
    return any(_batch(t) for t in _inputs_behind(tensor, exchanged))


def _inputs_behind(tensor: Any, exchanged: set[tf.Operation]) -> Iterator[Any]:
    """What has a value already, of that which a tensor of a function is made of."""
    for op in ancestors([tensor.op], stop=exchanged.__contains__, control=False):
        if op not in exchanged:
            yield from (value for t in op.inputs if not is_symbolic(value := outside(t)))


def _batch(value: Any) -> bool:
    """Whether a value may be a batch."""
    return value.dtype.is_floating and (value.shape.num_elements() or 0) > 1


def _line(op: tf.Operation) -> str:
    """Where the script has made it."""
    own = [frame for frame in op.traceback or () if not foreign_file(frame.filename)]
    return f" ({own[-1].filename.rpartition('/')[2]}:{own[-1].lineno})" if own else ""
