"""Divergence guard: checks that the norm of the averaged gradients is finite and does not grow.

All ranks check the same averages, so they decide the same in the same step without an exchange. In graphs and functions
the norm is that of the averages before a script's clipping. Eagerly it is that of the gradients that the optimizer
gets. In blocks each rank checks its own gradients.
"""

from __future__ import annotations

import math
import statistics
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.core.log import announce, rarely
from tfdist.graph.job import Job
from tfdist.updates import windows
from tfdist.updates.loss_scaling import averages_behind
from tfdist.updates.pipeline import GoOn, JobStage, Pairs, Update
from tfdist.updates.windows import Windows

_TIMES = 10.0
_CAUSES = (
    "usual causes: data that are not numbers, or a learning rate that is too high for the batch of all ranks. Lower "
    "the rate, warm up over more steps, or clip"
)


class Growth:
    """Detects a growing norm, in windows of steps.

    Attributes:
      not_finite: number of norms that were not finite.
    """

    def __init__(self) -> None:
        self.not_finite = 0
        self._step = 0
        self._windows = Windows(lambda first, known: _TIMES * statistics.median(known))

    def see(self, norm: float) -> str:
        """Return a description of what is wrong, or an empty string.

        Args:
          norm: norm in the next update.
        """
        self._step += 1
        if not math.isfinite(norm):
            self.not_finite += 1
            return f"the norm of the averaged gradients is {norm:g} in update {self._step}"
        usual = statistics.median(self._windows.known or [norm])
        above = self._windows.see(norm)
        if not above:
            return ""
        grown = ", ".join(f"{value:.3g}" for value in above)
        return (
            f"the norm of the averaged gradients has grown to {grown} in the windows of {windows.STEPS} updates up to "
            f"update {self._step}, from {usual:.3g}"
        )


class DivergenceGuard(JobStage):
    """Stage that checks the gradients that each optimizer is about to apply."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._growths: weakref.WeakKeyDictionary[Any, Growth] = weakref.WeakKeyDictionary()

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(update.with_(pairs=self._watched(update)))

    def _watched(self, update: Update) -> Pairs:
        """Return the same pairs; in graphs their gradients depend on the check.

        Raises:
          FloatingPointError: ``TFDIST_DIVERGENCE`` is ``stop``, and training has diverged; on all ranks. In a graph or
            a function TensorFlow raises its own error with the same message.
        """
        action = self._job.switches.settings.divergence
        if action == "off" or not update.trained or not self._job.switches.rewrites:
            return update.pairs
        growth = self._growths.setdefault(update.optimizer, Growth())

        def look(norm: np.ndarray) -> np.ndarray:
            wrong = growth.see(float(norm))
            if wrong and action == "stop":
                raise FloatingPointError(f"training has diverged: {wrong}; {_CAUSES}. Start from an earlier checkpoint")
            if wrong and (math.isfinite(norm) or rarely(growth.not_finite)):
                announce(f"training seems to diverge: {wrong}; {_CAUSES}")
            return np.array(True)

        norm = tf.linalg.global_norm([tf.cast(values, tf.float32) for values in averages_behind(update.gradients)])
        if tf.executing_eagerly():
            look(norm.numpy())
            return update.pairs
        with tf.control_dependencies([tf.numpy_function(look, [norm], tf.bool, stateful=True)]):
            return [
                (gradient if gradient is None else tf.identity(gradient), variable)
                for gradient, variable in update.pairs
            ]
