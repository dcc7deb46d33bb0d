"""Gradient markers: operations after which an average can replace a gradient; and the keys of variables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Set
from typing import Any, TypeAlias, cast

import tensorflow as tf

from tfdist.compat import variables as tf_variables
from tfdist.compat.graphs import is_symbolic, replace_input
from tfdist.graph.traversal import outside

Gradient: TypeAlias = Any  # tf.Tensor | tf.IndexedSlices

REFERENCES = {"VariableV2", "Variable", "TemporaryVariable"}
_VARIABLE_OPS = {"VarHandleOp", *REFERENCES}
_READS = {"Identity", "ReadVariableOp", "Enter", "RefEnter"}


@dataclasses.dataclass(eq=False)
class Marker:
    """A gradient with respect to a variable, passed through operations whose input can be replaced.

    Attributes:
      variable: key of the variable; see ``variable_key``.
      name: name of the variable.
      tensors: the marking operations' outputs: one for a dense gradient; values and indices for slices.
      dense_shape: dense shape of slices; None for a dense gradient.
      sources: tensors that this rank computed, which the marking operations pass on.
      version: ``graph.version`` when the marker was made.
      of: keys of the differentiated tensors; gradients of the same tensors are averaged together.
      each: True if it holds derivatives of many numbers, for example of each example's loss. The script combines them
        later, and the result is averaged when it is applied.
      targets: operations of the tensors whose gradients were computed through it, as in an inner step of meta-learning.
      averaged: True if its input has been replaced by the average.
      reduced: True if the script has combined values made of it over the ranks. It must stay this rank's gradient.
      due: bool tensor, True if this step's average is to be applied; None: every step's average is applied.
    """

    variable: Hashable
    name: str
    tensors: tuple[tf.Tensor, ...]
    dense_shape: tf.Tensor | None
    sources: tuple[tf.Tensor, ...]
    version: int
    of: tuple[Hashable, ...] = ()
    each: bool = False
    targets: list[tf.Operation] = dataclasses.field(default_factory=list)
    averaged: bool = False
    reduced: bool = False
    due: tf.Tensor | None = None

    @property
    def differentiated(self) -> bool:
        """Whether another gradient was computed through it."""
        return bool(self.targets)

    @property
    def gradient(self) -> Gradient:
        """The gradient that enters the marker: this rank's own until ``replace``."""
        inputs = [t.op.inputs[0] for t in self.tensors]
        return inputs[0] if len(inputs) == 1 else tf.IndexedSlices(inputs[0], inputs[1], self.dense_shape)

    def replace(self, gradient: Gradient, before: Set[tf.Operation] = frozenset()) -> None:
        """Replace the gradient that enters the marker.

        Args:
          gradient: gradient of the same kind, dense or slices.
          before: operations that keep the gradient that this rank computed.
        """
        new = (gradient,) if isinstance(gradient, tf.Tensor) else (gradient.values, gradient.indices)
        for tensor, source in zip(self.tensors, new, strict=True):
            own = tensor.op.inputs[0]
            for consumer in tensor.consumers() if tensor.op in before else ():
                if consumer in before:
                    for number, used in enumerate(consumer.inputs):
                        if used is tensor:
                            replace_input(consumer, number, own)
            replace_input(tensor.op, 0, source)
        self.averaged = True


def times(gradient: Gradient, factor: float | tf.Tensor) -> Gradient:
    """Return a gradient times a factor; slices stay slices, and float16 and bfloat16 are multiplied in float32."""
    if isinstance(factor, int | float) and factor == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(times(gradient.values, factor), gradient.indices, gradient.dense_shape)
    gradient = tf.convert_to_tensor(gradient)
    if gradient.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tf.cast(gradient, tf.float32) * tf.cast(factor, tf.float32), gradient.dtype)
    return gradient * tf.cast(factor, gradient.dtype)


def variable_key(x: Any) -> Hashable | None:
    """Return the key of the variable that ``x`` is, or reads directly; None for other tensors.

    The key is the variable's operation in a session's graph, or its handle's number where there is no such operation.
    """
    handle = getattr(x, "handle", None)
    if handle is not None:
        return handle_key(handle)
    return handle_key(x) if is_symbolic(x) and getattr(x, "dtype", None) != tf.resource else None


def handle_key(tensor: Any) -> Hashable | None:
    """Return the key of the variable that a handle belongs to, or that a tensor reads directly; None for others."""
    while tensor is not None:
        tensor = outside(tensor)
        if not is_symbolic(tensor):
            return tf_variables.handle_number(tensor)
        op = tensor.op
        if op.type in _VARIABLE_OPS or (op.type == "Placeholder" and tensor.dtype == tf.resource):
            return cast("Hashable", op)  # the placeholder is an argument of a function
        tensor = op.inputs[0] if op.type in _READS else None
    return None


def variable_name(x: Any) -> str:
    """Return a variable's name: of its operation in a session's graph; else the name in Keras or TensorFlow."""
    key = variable_key(x)
    if isinstance(key, tf.Operation):
        return str(key.name)
    # Keras puts the model's name before a layer's name if it built the layer in the model, but not if it loaded it.
    return "/".join(str(x.path).split("/")[-2:]) if hasattr(x, "path") else getattr(x, "name", None) or "variable"


def numberless(name: str) -> str:
    """Return a variable's name without the numbers that depend on what else a rank has built."""
    return re.sub(r"_\d+(?=[_/:]|$)", "", name)
