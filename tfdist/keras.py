"""Keras: callbacks and helpers for scripts: the learning rate for all ranks, metrics, values from one rank.

``model.fit`` trains correctly without them. The import of tfdist takes care of weights, gradients and logged metrics.
"""

from __future__ import annotations

import math
from typing import Any

import keras

import tfdist
from tfdist import schedules
from tfdist.start import process
from tfdist.training.fit_callbacks import averaged_logs, weights_and_state
from tfdist.updates.learning_rate import Rule, factor, warmed


def scale_learning_rate(learning_rate: Any, rule: Rule = "linear", warmup_steps: int = 0) -> Any:
    """Return the learning rate, or schedule, for the batch of all ranks together.

    Args:
      learning_rate: rate for one process: a number, or a ``keras.optimizers.schedules.LearningRateSchedule``.
      rule: ``linear`` multiplies the rate by the number of ranks, ``sqrt`` by its square root.
      warmup_steps: number of steps over which the factor grows linearly from 1 (Goyal et al. 2017, arXiv:1706.02677,
        2.2); 0 for no warm-up.

    Returns:
      A number, or a schedule if there is a warm-up or ``learning_rate`` is a schedule.

    Raises:
      ValueError: an unknown rule, or a negative number of steps.

    Example:
      >>> rate = tfdist.keras.scale_learning_rate(0.1, warmup_steps=100)
      >>> rate(0)
      0.1
    """
    scale = factor(tfdist.size(), rule, warmup_steps)
    if not warmup_steps and not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        return learning_rate * scale
    return schedules.scaled(learning_rate, rule, warmup_steps)


class LearningRateWarmup(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises an optimizer's learning rate in each step, linearly, up to the rate for the batch of all ranks.

    Use it for a rate that is a number, which other callbacks (``ReduceLROnPlateau``, for example) may set after the
    warm-up. For schedules see ``scale_learning_rate``. A run that continues also continues its warm-up.

    Args:
      warmup_steps: number of steps until the full rate. After them this callback does not change the rate.
      rule: see ``scale_learning_rate``.

    Example:
      >>> callbacks = [tfdist.keras.LearningRateWarmup(warmup_steps=100)]  # for model.fit
    """

    def __init__(self, warmup_steps: int, rule: Rule = "linear") -> None:
        super().__init__()
        self._warmup_steps = warmup_steps
        self._scale = factor(tfdist.size(), rule, warmup_steps)
        self._base = math.nan

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember the optimizer's rate as the rate for one process, the first time."""
        if math.isnan(self._base):
            self._base = float(self.model.optimizer.learning_rate)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of the next step."""
        step = int(self.model.optimizer.iterations)
        if step <= self._warmup_steps:
            self.model.optimizer.learning_rate = self._base * warmed(self._scale, step, self._warmup_steps)


def average_metrics(logs: dict[str, Any], what: str = "metrics") -> dict[str, float]:
    """Return the mean of each number over the ranks, for custom training loops.

    Collective: all ranks, with the same names.

    Args:
      logs: numbers by name.
      what: description of the numbers for messages; the same on all ranks.

    Raises:
      DisagreementError: the ranks have different names.

    Example:
      >>> tfdist.keras.average_metrics({"loss": 2.0})
      {'loss': 2.0}
    """
    return averaged_logs({name: float(value) for name, value in logs.items()}, what, process().job)


class BroadcastVariables(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks one rank's weights and optimizer state when training begins.

    ``model.fit`` does this automatically from rank 0. Use this callback for another rank.

    Args:
      root: rank that sends its values.

    Example:
      >>> callbacks = [tfdist.keras.BroadcastVariables(root=0)]  # for model.fit
    """

    def __init__(self, root: int = 0) -> None:
        super().__init__()
        self._root = root

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast the variables. Collective: all ranks."""
        tfdist.broadcast_variables(weights_and_state(self.model, process().job), self._root)


__all__ = ["BroadcastVariables", "LearningRateWarmup", "average_metrics", "scale_learning_rate"]
