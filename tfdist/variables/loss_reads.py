"""Loss reads: finds the variables, trained or not, from whose values a graph computes gradients.

A gradient depends on the loss, and the loss on the variables that the forward pass reads. A script may set such a
variable from a rank's own batch, for example class centres, or a codebook by moving averages. Then the ranks compute
gradients of different losses, and their average is the gradient of none of them.

A variable that is read only in branches of a flag that is fed may not be read in training at all. An example is batch
normalization as written for TensorFlow 1: ``tf.cond(training, batch_statistics, moving_averages)``.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Hashable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.graph.markers import REFERENCES, handle_key
from tfdist.graph.traversal import ancestors, arguments, bodies

# Operations that take a variable's value by its handle.
_READING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "_ReadVariablesOp"}
_PASSING = {"Identity", "ReadVariableOp"}  # a variable's value, or its handle
_FED = {"Placeholder", "PlaceholderWithDefault"}
_BRANCHES = {"Switch", "RefSwitch", "If", "StatelessIf", "Case", "StatelessCase"}  # their results are for branches only


def loss_reads(tensors: Iterable[Any]) -> dict[Hashable, bool]:
    """Return the keys (``markers.variable_key``) of the variables that symbolic tensors depend on.

    The value is False for variables that are read only in branches of flags: scalars that the script feeds.
    """
    found: dict[Hashable, bool] = {}
    walked = dict.fromkeys(ancestors([t.op for t in tensors if is_symbolic(t)], control=False))
    for op in walked:
        for tensor in op.outputs[:1] if op.type in REFERENCES else _read_by(op):
            key = handle_key(tensor)
            if key is not None:
                found[key] = found.get(key, False) or not (_by_flag(op) or _in_branches(tensor.op, walked))
    return found


def _in_branches(op: tf.Operation, walked: Container[tf.Operation]) -> bool:
    """Return whether an operation's results are used in branches of flags only."""
    uses = [use for tensor in op.outputs for use in tensor.consumers() if use in walked]
    return bool(uses) and all(_by_flag(u) or (u.type in _PASSING and _in_branches(u, walked)) for u in uses)


def _by_flag(op: tf.Operation) -> bool:
    """Return whether an operation is a condition, and depends on nothing but scalars that are fed."""
    if op.type not in _BRANCHES:
        return False
    behind = ancestors([op.inputs[1 if "Switch" in op.type else 0].op], control=False)
    fed = [one.outputs[0] for one in behind if one.type in _FED]
    read = any(one.type in _READING or one.type in REFERENCES for one in behind)
    return bool(fed) and not read and all(tensor.shape.rank in (0, None) for tensor in fed)


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
