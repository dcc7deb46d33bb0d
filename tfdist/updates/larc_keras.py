"""LARC around an optimizer of Keras 3: see ``larc``.

Keras unscales, accumulates, clips and decays in an optimizer's ``apply``, and then calls its ``_backend_update_step``
(keras/src/optimizers/base_optimizer.py): there gradients are scaled, so that norms are those of what is applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tfdist.updates.larc import Larc

_UPDATE = "_backend_update_step"


def scale_updates(optimizer: Any, larc: Callable[[], Larc | None]) -> None:
    """Have an optimizer scale its gradients last, if it does not yet.

    Args:
      optimizer: of Keras 3, which hands its gradients on to no other one.
      larc: how, asked where an update is built or executed; None: not.

    Raises:
      RuntimeError: this Keras has no place for it.
    """
    update = getattr(optimizer, _UPDATE, None)
    if update is None:
        raise RuntimeError(f"Keras {keras.__version__} has no {type(optimizer).__name__}.{_UPDATE}: LARC needs another")
    if _UPDATE in vars(optimizer):
        return

    def scaled_update(grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        how = larc()
        scaled = grads if how is None else how.gradients(grads, trainable_variables, learning_rate)
        return update(scaled, trainable_variables, learning_rate)

    setattr(optimizer, _UPDATE, scaled_update)


@keras.saving.register_keras_serializable("tfdist", "Larc")
class LarcKerasOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """An optimizer of Keras 3 whose gradients are scaled last, before they become an update.

    Args:
      inner_optimizer: which.
      larc: how they are scaled.
      name: of this one.

    Raises:
      ValueError: the optimizer has LARC already, or hands its gradients on to another one.
    """

    def __init__(self, inner_optimizer: Any, larc: Larc, name: str | None = None) -> None:
        kind = type(inner_optimizer).__name__
        if hasattr(inner_optimizer, "inner_optimizer"):
            raise ValueError(f"LARC goes around the optimizer inside {kind}, not around {kind}: exchange the two")
        if _UPDATE in vars(inner_optimizer):
            raise ValueError(f"this {kind} has LARC already")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer, self._larc = inner_optimizer, larc
        scale_updates(inner_optimizer, lambda: larc)

    def build(self, variables: Any) -> None:
        """The optimizer's variables."""
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        super().build(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """One step of the optimizer."""
        if not self.built:
            self.build(trainable_variables)
        self.inner_optimizer.apply(grads, trainable_variables)

    @property
    def variables(self) -> list[Any]:
        """Its own and the optimizer's."""
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self) -> Any:
        """The optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        """The optimizer's."""
        return self.inner_optimizer.iterations

    @property
    def loss_scale_factor(self) -> Any:
        """The optimizer's, by which ``scale_loss`` multiplies, and it divides."""
        return self.inner_optimizer.loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: Any) -> None:
        if hasattr(self, "inner_optimizer"):  # as a LossScaleOptimizer around this one does
            self.inner_optimizer.loss_scale_factor = factor

    def finalize_variable_values(self, var_list: Any) -> None:
        """The optimizer's moving averages."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """For saved models."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, **dataclasses.asdict(self._larc)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> LarcKerasOptimizer:
        """What ``get_config`` has described."""
        config = dict(config)
        name = config.pop("name")
        inner = keras.saving.deserialize_keras_object(config.pop("inner_optimizer"), custom_objects=custom_objects)
        return cls(inner, Larc(**config), name)
