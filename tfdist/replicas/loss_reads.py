"""Loss reads: finds the variables, trained or not, from whose values a graph computes gradients.

A gradient depends on the loss, and the loss on the variables that the forward pass reads. A script may set such a
variable from a rank's own batch, for example class centres, or a codebook by moving averages. Then the ranks compute
gradients of different losses, and their average is the gradient of none of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.graph.markers import REFERENCES, handle_key
from tfdist.graph.traversal import ancestors, arguments, bodies

# Operations that take a variable's value by its handle.
_READING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "_ReadVariablesOp"}


def loss_reads(tensors: Iterable[Any]) -> set[Hashable]:
    """Return the keys (``markers.variable_key``) of the variables that symbolic tensors depend on."""
    walked = ancestors([t.op for t in tensors if is_symbolic(t)], control=False)
    read = (tensor for op in walked for tensor in (op.outputs[:1] if op.type in REFERENCES else _read_by(op)))
    return {key for tensor in read if (key := handle_key(tensor)) is not None}


def _read_by(op: tf.Operation) -> list[Any]:
    """Return the handles of the variables that an operation reads."""
    handles = [t for t in op.inputs if t.dtype == tf.resource]
    if not handles:
        return []
    if op.type in _READING or op.type == "Switch":
        return handles[:1]
    read = {number for body in bodies(op) for number in _arguments_read(body)}
    return [t for n, t in enumerate(op.inputs) if n - arguments(op) in read and t.dtype == tf.resource]


_known: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()


def _arguments_read(body: Any) -> set[int]:
    """Return the positions of a function's arguments that are handles of variables on which its results depend."""
    if body not in _known:
        places = {id(tensor): number for number, tensor in enumerate(body.inputs)}
        read = {id(tensor) for op in _inside(body) for tensor in _read_by(op)}
        _known[body] = {places[tensor] for tensor in read & places.keys()}
    return _known[body]


def _inside(body: Any) -> Iterable[tf.Operation]:
    seen = {t.op for t in body.outputs}
    queue = list(seen)
    for op in queue:  # grows while it is walked
        for tensor in op.inputs:
            if tensor.op not in seen:
                seen.add(tensor.op)
                queue.append(tensor.op)
    return queue
