"""Derivatives of what collectives make of a value: ``tf.custom_gradient`` without its memory of every graph."""

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
    """What a function makes of a value, with a derivative where there can be one.

    ``tf.custom_gradient`` (tensorflow/python/ops/custom_gradient.py) registers a function for each use in a graph, for
    ever, and with it the graph and whatever it holds. Here a graph keeps its own.

    Args:
      value: tensor, array or number.
      forward: the function, of a tensor to a tensor of the same graph.
      backward: gets the loss's derivative with respect to the result, and returns that with respect to ``value``.
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
    make_state(graph).exchanged.add(outputs[0].op)  # what it returns is nobody's own, though the value goes through it
    eager.record_operation(_TYPE, outputs, [result, value], lambda d, _: [None, backward(tf.convert_to_tensor(d))])
    return outputs[0]


def nothing_after(exchanged: tf.Tensor) -> tf.Tensor:
    """Zeros in place of a result that other ranks need this one to compute.

    ``tf.zeros_like`` looks at the shape alone: a session would leave the exchange out.
    """
    with tf.control_dependencies([exchanged]):
        return tf.identity(tf.zeros_like(exchanged))


@tf.RegisterGradient(_TYPE)
def _gradient(op: tf.Operation, upstream: Any, _: Any) -> list[Any]:
    return [None, getattr(op.graph, _ATTRIBUTE)[op.name](tf.convert_to_tensor(upstream))]
