"""Derivatives of collectives: a ``tf.custom_gradient`` that does not keep every graph in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import eager
from tfdist.graph.graph_state import make_state

Backward = Callable[[tf.Tensor], tf.Tensor]

_TYPE = "TfdistDerivative"
_ATTRIBUTE = "_tfdist_derivatives"


def differentiable(value: Any, forward: Callable[[Any], Any], backward: Backward) -> Any:
    """Return ``forward(value)``, with a derivative if the value is a floating-point or complex tensor.

    ``tf.custom_gradient`` (tensorflow/python/ops/custom_gradient.py) registers a function for each use in a graph, and
    never removes it. The function keeps the graph and everything in it alive. Here each graph keeps its own functions.

    Args:
      value: tensor, array or number.
      forward: function of a tensor that returns a tensor of the same graph.
      backward: function of the loss's derivative with respect to the result. It returns the loss's derivative with
        respect to ``value``.
    """
    if not (isinstance(value, tf.Tensor) and (value.dtype.is_floating or value.dtype.is_complex)):
        return forward(value)
    if hasattr(value, "numpy"):
        return tf.custom_gradient(lambda own: (forward(own), lambda d: backward(tf.convert_to_tensor(d))))(value)
    graph = tf.compat.v1.get_default_graph()
    result = forward(tf.stop_gradient(value))
    with eager.unrecorded(), graph.gradient_override_map({"IdentityN": _TYPE}):
        outputs = tf.identity_n([result, value])
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, {})
    getattr(graph, _ATTRIBUTE)[outputs[0].op.name] = backward
    make_state(graph).exchanged.add(outputs[0].op)  # its result comes from all ranks, although an input is own
    eager.record_operation(_TYPE, outputs, [result, value], lambda d, _: [None, backward(tf.convert_to_tensor(d))])
    return outputs[0]


def nothing_after(exchanged: tf.Tensor) -> tf.Tensor:
    """Return zeros in place of a result that this rank must compute because other ranks need it to take part.

    ``tf.zeros_like`` alone depends only on the shape: a session would leave the exchange out.
    """
    with tf.control_dependencies([exchanged]):
        return tf.identity(tf.zeros_like(exchanged))


@tf.RegisterGradient(_TYPE)
def _gradient(op: tf.Operation, upstream: Any, _: Any) -> list[Any]:
    return [None, getattr(op.graph, _ATTRIBUTE)[op.name](tf.convert_to_tensor(upstream))]
