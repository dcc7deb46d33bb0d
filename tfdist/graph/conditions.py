"""Conditions in graphs under construction that can do what stands around them can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.graph import function_state


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


def contexts(graph: tf.Graph) -> list[Any]:
    """The conditions and loops of TensorFlow 1 around what is under construction, and None for outside of all.

    What was built in one of these may be used here.
    """
    here, found = graph._get_control_flow_context(), []
    while here is not None:
        found.append(here)
        here = here.outer_context
    return [*found, None]
