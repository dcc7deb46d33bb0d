"""Conditions in graphs under construction: builds them, and finds those that depend on this rank's own values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import control_flow_around, is_symbolic
from tfdist.core.program_line import foreign_file
from tfdist.graph import function_state
from tfdist.graph.traversal import ancestors, outside

_OWN = re.compile("Random|Iterator|PyFunc|ReadFile|Dequeue|DecodeCSV")


def do_if(condition: tf.Tensor, build: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Build operations that run only if a condition is true, and return their result.

    In a session's graph this is TensorFlow 1's ``tf.cond``: it can set reference variables, and a function cannot.
    A switch selects the kind, and the script may have set it (tensorflow/python/ops/control_flow_util_v2.py).

    Args:
      condition: scalar, bool.
      build: function that builds the operations, and returns a scalar bool that depends on them.

    Returns:
      The result of ``build``, or False if the condition is false.
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


_around: ContextVar[tuple[Any, ...]] = ContextVar("_around", default=())


@contextlib.contextmanager
def building(condition: Any) -> Iterator[None]:
    """Note the condition under which the operations run that a function builds in this context."""
    before = _around.set((*_around.get(), condition))
    try:
        yield
    finally:
        _around.reset(before)


def own_condition(exchanged: set[tf.Operation]) -> str:
    """Return a condition around the current operations that depends on this rank's own values, as text; else empty.

    Args:
      exchanged: operations whose results come from all ranks.
    """
    around = control_flow_around(tf.compat.v1.get_default_graph())
    conditions = [*_around.get(), *(getattr(own, "pred", None) for own in around)]
    for condition in conditions:
        if condition is not None and is_symbolic(condition) and _of_own_values(condition, exchanged):
            return f"{condition.op.name!r}{_line(condition.op)}"
    return ""


def _of_own_values(tensor: Any, exchanged: set[tf.Operation]) -> bool:
    """Return whether a tensor depends on values that only this rank has: its batch, or its random numbers.

    A script's scalars count as the same on all ranks, for example a step's number, or a flag for the last step.
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
        if any(_batch(value) for value in map(outside, op.inputs) if not is_symbolic(value)):  # a function's, eager
            return True
    return False


def _batch(value: Any) -> bool:
    """Return whether a value may be a batch."""
    return value.dtype.is_floating and (value.shape.num_elements() or 0) > 1


def _line(op: tf.Operation) -> str:
    """Return the file and line of the script that made an operation, as text; empty if unknown."""
    own = [frame for frame in op.traceback or () if not foreign_file(frame.filename)]
    return f" ({own[-1].filename.rpartition('/')[2]}:{own[-1].lineno})" if own else ""
