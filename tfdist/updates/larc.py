"""LARC: a learning rate for each variable, from the norms of the variable and of its gradient.

With w a variable, g its gradient and ``rate`` the optimizer's learning rate:

    local = eta * |w| / (|g| + epsilon)

    scale    g * local                  the variable's rate is rate * local
    clip     g * min(local / rate, 1)   the variable's rate is min(local, rate)

Where w or g is 0, g stays as it is. For ``IndexedSlices``, equal rows are added up before the norm is taken. Source:
You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks" (2017), eq. 6, for ``scale``; Kuchaiev et al.,
"OpenSeq2Seq" (2018), for ``clip``.

The gradients are averages, or depend on marks behind which averages are put later. This module must work in both cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import tensorflow as tf

from tfdist.graph.slices import merge

Mode = Literal["clip", "scale"]


@dataclass(frozen=True)
class Larc:
    """Settings of LARC.

    Attributes:
      eta: trust coefficient.
      mode: ``clip`` or ``scale``.
      epsilon: number that is added to the gradient's norm.

    Raises:
      ValueError: an unknown mode, or a number out of its range.
    """

    eta: float = 0.001
    mode: Mode = "clip"
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Check the values."""
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode={self.mode!r}; it is one of {', '.join(map(repr, get_args(Mode)))}")
        if not 0 < self.eta < math.inf:
            raise ValueError(f"eta={self.eta!r}; it is more than 0, and finite")
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon={self.epsilon!r}; it is at least 0, and finite")

    def gradients(self, gradients: Sequence[Any], variables: Sequence[Any], learning_rate: Any) -> list[Any]:
        """Return each gradient times its factor; None stays None.

        Args:
          gradients: tensors, ``IndexedSlices`` or None.
          variables: variables of TensorFlow or Keras, in the same order.
          learning_rate: number or tensor, the optimizer's rate; ``scale`` ignores it.

        Raises:
          ValueError: different numbers of gradients and variables, or no learning rate for ``clip``.
        """
        if self.mode == "clip" and learning_rate is None:
            raise ValueError("learning_rate=None; mode='clip' needs the optimizer's rate, a number or a tensor")
        if len(gradients) != len(variables):
            raise ValueError(f"{len(gradients)} gradients for {len(variables)} variables; give one for each variable")
        pairs = zip(gradients, variables, strict=True)
        return [gradient if gradient is None else self._scaled(gradient, v, learning_rate) for gradient, v in pairs]

    def _scaled(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        weight_norm, gradient_norm = _norm(tf.convert_to_tensor(variable)), _norm(_entries(gradient))
        factor = self.eta * weight_norm / (gradient_norm + tf.cast(self.epsilon, gradient_norm.dtype))
        if self.mode == "clip":
            factor = tf.minimum(factor / tf.cast(learning_rate, factor.dtype), 1.0)
        factor = tf.where((weight_norm > 0) & (gradient_norm > 0), factor, tf.ones_like(factor))
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values * tf.cast(factor, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        gradient = tf.convert_to_tensor(gradient)
        return gradient * tf.cast(factor, gradient.dtype)


def _entries(gradient: Any) -> tf.Tensor:
    """Return all entries of a gradient; of slices, the sums of equal rows."""
    return merge(gradient).values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)


def _norm(values: tf.Tensor) -> tf.Tensor:
    """Return the norm, computed in float32 at least, because squares of half precision overflow."""
    values = tf.cast(values, tf.float32) if values.dtype in (tf.float16, tf.bfloat16) else values
    return tf.sqrt(tf.reduce_sum(values * values))


class LarcOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer of TensorFlow 1 and scales its gradients. Checkpoints contain the wrapped optimizer only.

    Args:
      optimizer: optimizer to wrap.
      larc: settings of LARC.
      learning_rate: rate of the optimizer; None to read it from the optimizer.

    Raises:
      ValueError: ``clip`` needs the rate, and the optimizer does not expose it.
    """

    def __init__(self, optimizer: Any, larc: Larc, learning_rate: Any = None) -> None:
        super().__init__(False, f"Larc{optimizer.get_name()}")
        self._inner, self._larc = optimizer, larc
        own = getattr(optimizer, "_learning_rate", getattr(optimizer, "_lr", None))
        self._rate = own if learning_rate is None else learning_rate
        if self._rate is None and larc.mode == "clip":
            raise ValueError(
                f"the learning rate of {type(optimizer).__name__} cannot be read: give larc the same learning_rate"
            )

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Compute gradients as the wrapped optimizer does."""
        return self._inner.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
        """Apply scaled gradients with the wrapped optimizer."""
        pairs = list(grads_and_vars)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        scaled = self._larc.gradients(gradients, variables, self._call_if_callable(self._rate))
        return self._inner.apply_gradients(zip(scaled, variables, strict=True), global_step, name)

    def get_slot(self, var: Any, name: str) -> Any:
        """Return a slot of the wrapped optimizer."""
        return self._inner.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Return the slot names of the wrapped optimizer."""
        return self._inner.get_slot_names()

    def variables(self) -> list[Any]:
        """Return the variables of the wrapped optimizer."""
        return self._inner.variables()

    def _trackable_children(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner._trackable_children(*args, **kwargs)

    def _lookup_dependency(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner._lookup_dependency(*args, **kwargs)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> None:
        self._inner._create_or_restore_slot_variable(*args, **kwargs)
