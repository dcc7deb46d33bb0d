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

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import tensorflow as tf

from tfdist.compat.optimizers import has_rate, innermost, of_keras_3, rate, tree
from tfdist.core import exclusions
from tfdist.core.settings import SettingsError
from tfdist.gradients.rows import merge
from tfdist.updates.pipeline import GoOn, JobStage, Update

Mode = Literal["clip", "scale"]
_UPDATE, _MARK = "_backend_update_step", "_tfdist_larc"


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

    def pairs(self, pairs: Sequence[tuple[Any, Any]], learning_rate: Any) -> list[tuple[Any, Any]]:
        """Return pairs of gradients and variables with scaled gradients; see ``gradients``."""
        variables = [variable for _, variable in pairs]
        return list(zip(self.gradients([g for g, _ in pairs], variables, learning_rate), variables, strict=True))

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


def set_larc(optimizer: Any, larc: Larc, learning_rate: Any = None) -> None:
    """Make an optimizer of TensorFlow 1 or Keras 3, and those inside it, scale their gradients.

    Args:
      optimizer: the optimizer.
      larc: settings of LARC.
      learning_rate: rate of an optimizer of TensorFlow 1; None to read it from the optimizer.

    Raises:
      ValueError: it has LARC already; or ``clip`` needs the rate, and the optimizer does not expose it.
    """
    kind = type(optimizer).__name__
    if has_larc(optimizer):
        raise ValueError(f"this {kind} has LARC already")
    if of_keras_3(optimizer):
        scale_updates(optimizer, lambda: larc)
    elif larc.mode == "clip" and learning_rate is None and not has_rate(optimizer):
        raise ValueError(f"the learning rate of {kind} cannot be read: give larc the same learning_rate")
    else:

        def apply_gradients(grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
            own = rate(optimizer) if learning_rate is None else learning_rate
            scaled = larc.pairs(list(grads_and_vars), own() if callable(own) else own)
            apply = type(optimizer).apply_gradients  # the present one: hooks come and go
            return apply(optimizer, scaled, global_step, name)

        optimizer.apply_gradients = apply_gradients
    for one in innermost(optimizer):
        object.__setattr__(one, _MARK, True)  # (Keras's __setattr__ would track the value)


def has_larc(optimizer: Any) -> bool:
    """Return whether a script has called ``set_larc`` for an optimizer or for one inside it."""
    return any(_MARK in vars(one) for one in tree(optimizer))


def scale_updates(optimizer: Any, larc: Callable[[], Larc | None]) -> None:
    """Make an optimizer of Keras 3 scale its gradients in its last step, if it does not do so yet.

    ``apply`` unscales, accumulates, clips and decays, and then calls ``_backend_update_step``
    (keras/src/optimizers/base_optimizer.py). So LARC uses the norms of the final gradients.

    Args:
      optimizer: the optimizer; those inside it compute the updates.
      larc: function that returns the settings of LARC when an update is built or executed; None for no scaling.

    Raises:
      RuntimeError: this Keras version has no ``_backend_update_step``.
    """
    for one in innermost(optimizer):
        if not hasattr(one, _UPDATE):
            raise RuntimeError(f"this Keras has no {type(one).__name__}.{_UPDATE}: LARC needs another version")
        if _UPDATE not in vars(one):
            setattr(one, _UPDATE, functools.partial(_update, larc, getattr(one, _UPDATE)))


def _update(
    larc: Callable[[], Larc | None],
    update: Callable[..., Any],
    grads: Any,
    trainable_variables: Any,
    learning_rate: Any,
) -> Any:
    how = larc()
    scaled = grads if how is None else how.gradients(grads, trainable_variables, learning_rate)
    return update(scaled, trainable_variables, learning_rate)


class LarcOfSettings(JobStage):
    """Stage that scales gradients by LARC if a setting requests it, for scripts that do not call ``larc``."""

    def update(self, update: Update, go_on: GoOn) -> Any:
        larc = self._larc()
        if larc is None:
            return go_on(update)
        name, kind = f"larc={larc.mode}", type(update.optimizer).__name__
        if has_larc(update.optimizer):
            raise SettingsError(exclusions.LARC_TWICE.told(name, kind))
        if of_keras_3(update.optimizer):
            scale_updates(update.optimizer, self._larc)
            return go_on(update)
        learning_rate = rate(update.optimizer)
        if larc.mode == "clip" and learning_rate is None:
            raise SettingsError(
                f"{name}, but the learning rate of {kind} cannot be read: use tfdist.larc with the same "
                "learning_rate, or larc=scale, which needs none"
            )
        return go_on(update.with_(pairs=larc.pairs(update.pairs, learning_rate)))

    def _larc(self) -> Larc | None:
        settings, rewrites = self._job.switches.settings, self._job.switches.rewrites
        return Larc(settings.larc_eta, cast("Mode", settings.larc)) if rewrites and settings.larc != "off" else None
