"""Gradient markers: operations behind which an average can take a gradient's place; and which variable it is of."""

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
      variable: identifies it: see ``variable_key``.
      name: of the variable.
      tensors: the marking operations' outputs: one for a dense gradient; values and indices for slices.
      dense_shape: of slices.
      sources: what this rank computed, to be marked.
      version: ``graph.version`` when it was made.
      of: what was differentiated; gradients of the same are averaged together.
      each: it holds the derivatives of many numbers, of each example's loss say, that are combined later; what is
        made of them is averaged where it is applied.
      differentiated: another gradient has been computed through it, as in an inner step of meta-learning.
      averaged: its input has been replaced by the average.
      reduced: the script has combined over the ranks what it has made of this rank's own, which must not change then.
      due: a bool tensor, whether this step's average is to be applied; None: every step's is.
    """

    variable: Hashable
    name: str
    tensors: tuple[tf.Tensor, ...]
    dense_shape: tf.Tensor | None
    sources: tuple[tf.Tensor, ...]
    version: int
    of: tuple[Hashable, ...] = ()
    each: bool = False
    differentiated: bool = False
    averaged: bool = False
    reduced: bool = False
    due: tf.Tensor | None = None

    @property
    def stays_own(self) -> bool:
        """Whether it is for what is made of it to be averaged, where that is applied."""
        return self.each or self.reduced

    @property
    def gradient(self) -> Gradient:
        """What this rank computed."""
        inputs = [t.op.inputs[0] for t in self.tensors]
        return inputs[0] if len(inputs) == 1 else tf.IndexedSlices(inputs[0], inputs[1], self.dense_shape)

    def replace(self, gradient: Gradient, before: Set[tf.Operation] = frozenset()) -> None:
        """Put another gradient behind the mark.

        Args:
          gradient: of the same kind.
          before: operations that keep the one that this rank computed.
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
    """A gradient multiplied; slices stay slices, and narrow numbers are multiplied in float32."""
    if isinstance(factor, int | float) and factor == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(times(gradient.values, factor), gradient.indices, gradient.dense_shape)
    gradient = tf.convert_to_tensor(gradient)
    if gradient.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tf.cast(gradient, tf.float32) * tf.cast(factor, tf.float32), gradient.dtype)
    return gradient * tf.cast(factor, gradient.dtype)


def variable_key(x: Any) -> Hashable | None:
    """What identifies the variable that ``x`` is, or is a plain reading of; None for other tensors.

    The operation that holds it in a session's graph; the number of its handle where there is no such operation.
    """
    handle = getattr(x, "handle", None)
    if handle is not None:
        return handle_key(handle)
    return handle_key(x) if is_symbolic(x) and getattr(x, "dtype", None) != tf.resource else None


def handle_key(tensor: Any) -> Hashable | None:
    """What identifies the variable that this is the handle of, or of whose handle it is a plain reading."""
    while tensor is not None:
        tensor = outside(tensor)
        if not is_symbolic(tensor):
            return tf_variables.key_of_handle(tensor)
        op = tensor.op
        if op.type in _VARIABLE_OPS or (op.type == "Placeholder" and tensor.dtype == tf.resource):
            return cast("Hashable", op)  # the latter: an argument of a function
        tensor = op.inputs[0] if op.type in _READS else None
    return None


def variable_name(x: Any) -> str:
    """Its name: of the operation in a session's graph; else as Keras or TensorFlow has it."""
    key = variable_key(x)
    if isinstance(key, tf.Operation):
        return str(key.name)
    # Keras puts the model's name before a layer's where it has been built as a part of it, but not if it was loaded.
    return "/".join(str(x.path).split("/")[-2:]) if hasattr(x, "path") else getattr(x, "name", None) or "variable"


def numberless(name: str) -> str:
    """A variable's name without the numbers that depend on what else a rank has built."""
    return re.sub(r"_\d+(?=[_/:]|$)", "", name)
