"""LARC for optimizers of Keras 3: see ``larc``.

An optimizer's ``apply`` unscales, accumulates, clips and decays, and then calls ``_backend_update_step``
(keras/src/optimizers/base_optimizer.py). LARC scales gradients there, so that it uses the norms of the final gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tfdist.compat.optimizers import innermost
from tfdist.updates.larc import Larc

_UPDATE = "_backend_update_step"


def scale_updates(optimizer: Any, larc: Callable[[], Larc | None]) -> None:
    """Make an optimizer scale its gradients in its last step, if it does not do so yet.

    Args:
      optimizer: optimizer of Keras 3 without an inner optimizer.
      larc: function that returns the settings of LARC when an update is built or executed; None for no scaling.

    Raises:
      RuntimeError: this Keras version has no ``_backend_update_step``.
    """
    update = getattr(optimizer, _UPDATE, None)
    if update is None:
        raise RuntimeError(
            f"Keras {keras.__version__} has no {type(optimizer).__name__}.{_UPDATE}: LARC needs another version"
        )
    if _UPDATE in vars(optimizer):
        return

    def scaled_update(grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        how = larc()
        scaled = grads if how is None else how.gradients(grads, trainable_variables, learning_rate)
        return update(scaled, trainable_variables, learning_rate)

    setattr(optimizer, _UPDATE, scaled_update)


@keras.saving.register_keras_serializable("tfdist", "Larc")
class LarcKerasOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer of Keras 3 and scales its gradients last, immediately before the update.

    Args:
      inner_optimizer: optimizer to wrap.
      larc: settings of LARC.
      name: name of this wrapper.

    Raises:
      ValueError: the optimizer has LARC already, or has an inner optimizer.
    """

    def __init__(self, inner_optimizer: Any, larc: Larc, name: str | None = None) -> None:
        kind = type(inner_optimizer).__name__
        if hasattr(inner_optimizer, "inner_optimizer"):
            raise ValueError(f"LARC must wrap the optimizer inside {kind}, not {kind}: exchange the two")
        applying = innermost(inner_optimizer)
        if any(_UPDATE in vars(one) for one in applying):
            raise ValueError(f"this {kind} has LARC already")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer, self._larc = inner_optimizer, larc
        for one in applying:
            scale_updates(one, lambda: larc)

    def build(self, variables: Any) -> None:
        """Build the variables of the wrapped optimizer."""
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        super().build(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Apply gradients with the wrapped optimizer."""
        if not self.built:
            self.build(trainable_variables)
        self.inner_optimizer.apply(grads, trainable_variables)

    @property
    def variables(self) -> list[Any]:
        """Variables of this wrapper and of the wrapped optimizer."""
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the wrapped optimizer."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        """Number of steps of the wrapped optimizer."""
        return self.inner_optimizer.iterations

    @property
    def loss_scale_factor(self) -> Any:
        """Loss scale of the wrapped optimizer. ``scale_loss`` multiplies by it; the wrapped optimizer divides by it."""
        return self.inner_optimizer.loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: Any) -> None:
        # A LossScaleOptimizer around this optimizer sets the factor; Keras's constructor sets it too early.
        if hasattr(self, "inner_optimizer"):
            self.inner_optimizer.loss_scale_factor = factor

    def finalize_variable_values(self, var_list: Any) -> None:
        """Set variables to the moving averages of the wrapped optimizer."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Return the wrapped optimizer and the settings, for saved models."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, **dataclasses.asdict(self._larc)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> LarcKerasOptimizer:
        """Make an optimizer from a result of ``get_config``."""
        config = dict(config)
        name = config.pop("name")
        inner = keras.saving.deserialize_keras_object(config.pop("inner_optimizer"), custom_objects=custom_objects)
        return cls(inner, Larc(**config), name)
