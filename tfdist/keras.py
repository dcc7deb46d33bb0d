"""Callbacks and helpers for Keras scripts: the learning rate for all ranks, metrics, values from one rank.

``model.fit`` needs none of them to train right: weights, gradients and logged metrics are taken care of by the import.
"""

from __future__ import annotations

import math
from typing import Any

import keras

import tfdist
from tfdist import schedules
from tfdist.core.learning_rate import Rule, factor, warmed
from tfdist.start import process
from tfdist.training.fit_callbacks import averaged_logs
from tfdist.updates import larc_keras  # noqa: F401 (models saved with LARC are loaded after this import)


def scale_learning_rate(learning_rate: Any, rule: Rule = "linear", warmup_steps: int = 0) -> Any:
    """A learning rate, or a schedule of it, for the batch of all ranks together.

    Args:
      learning_rate: of one process: a number, or a ``keras.optimizers.schedules.LearningRateSchedule``.
      rule: ``linear``: times the number of ranks; ``sqrt``: times its square root.
      warmup_steps: the factor grows linearly from 1 over so many steps (Goyal et al. 2017, arXiv:1706.02677, 2.2).

    Returns:
      A number, or a schedule if there is a warm-up or one was given.

    Raises:
      ValueError: an unknown rule, or a negative number of steps.
    """
    scale = factor(tfdist.size(), rule, warmup_steps)
    if not warmup_steps and not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        return learning_rate * scale
    return schedules.scaled(learning_rate, rule, warmup_steps)


class LearningRateWarmup(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises an optimizer's learning rate linearly to that for the batch of all ranks, from step to step.

    For optimizers whose rate is a number that other callbacks (``ReduceLROnPlateau``, say) set afterwards; for one that
    is a schedule see ``scale_learning_rate``. A run that continues is warmed up no further than it was.

    Args:
      warmup_steps: after which the rate is reached; from then on this callback leaves it alone.
      rule: see ``scale_learning_rate``.
    """

    def __init__(self, warmup_steps: int, rule: Rule = "linear") -> None:
        super().__init__()
        self._warmup_steps = warmup_steps
        self._scale = factor(tfdist.size(), rule, warmup_steps)
        self._base = math.nan

    def on_train_begin(self, logs: Any = None) -> None:
        """Takes the optimizer's rate for that of one process, the first time."""
        if math.isnan(self._base):
            self._base = float(self.model.optimizer.learning_rate)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of the next step."""
        step = int(self.model.optimizer.iterations)
        if step <= self._warmup_steps:
            self.model.optimizer.learning_rate = self._base * warmed(self._scale, step, self._warmup_steps)


def average_metrics(logs: dict[str, Any], what: str = "metrics") -> dict[str, float]:
    """The mean of each number over the ranks, for training loops of one's own.

    Collective: all ranks, with the same names.

    Args:
      logs: numbers by name.
      what: they are, in words, for messages; the same on all ranks.

    Raises:
      DisagreementError: a rank has a name that another has not.
    """
    return averaged_logs({name: float(value) for name, value in logs.items()}, what, process().job)


class BroadcastVariables(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks one rank's weights and optimizer state when training begins.

    ``model.fit`` does so from rank 0 by itself: this is for another rank.

    Args:
      root: whose.
    """

    def __init__(self, root: int = 0) -> None:
        super().__init__()
        self._root = root

    def on_train_begin(self, logs: Any = None) -> None:
        """Collective: all ranks."""
        tfdist.broadcast_variables([*self.model.weights, *self.model.optimizer.variables], self._root)


__all__ = ["BroadcastVariables", "LearningRateWarmup", "average_metrics", "scale_learning_rate"]
