"""Accumulation: the gradients of k steps are added up on each rank, exchanged once, and applied once.

The exchange counts the steps. In all steps but the last it adds up its inputs and returns zeros. In the last step it
exchanges the sums, while the rest of the backward pass runs. Their mean over the steps and the ranks is put behind the
marks. So a script clips the gradient that one process with the batch of all of them would clip. The optimizer's update
is inside a condition that is true in the last step only. Its slots, steps and moving averages see one update.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import tensorflow as tf

from tfdist.compat.optimizers import tree
from tfdist.compat.variables import is_overwritten
from tfdist.core import exclusions
from tfdist.core.settings import SettingsError
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_name
from tfdist.graph.step_sums import Accumulation, StepSums
from tfdist.updates.pipeline import GoOn, JobStage, Update


class Accumulations(JobStage):
    """Stage that accumulates the gradients of each optimizer, and tells later stages which step is the last."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._known: weakref.WeakKeyDictionary[Any, dict[Hashable, StepSums]] = weakref.WeakKeyDictionary()

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(update.with_(accumulation=self._held(update)))

    def _held(self, update: Update) -> Accumulation | None:
        """Return the accumulation of an update in a graph; None if its optimizer applies every step.

        Raises:
          SettingsError: the optimizer itself accumulates.
          RuntimeError: the optimizer applies gradients eagerly.
        """
        steps = self._job.switches.settings.accumulate_steps
        if steps == 1 or self._job.switches.alone_depth:
            return None
        for one in tree(update.optimizer):
            own = getattr(one, "gradient_accumulation_steps", None)
            if own is not None:
                kerass = f"{type(one).__name__} has gradient_accumulation_steps={own}"
                raise SettingsError(exclusions.HELD_AND_KERAS.told(f"accumulate_steps={steps}", kerass))
        if tf.executing_eagerly():
            eagerly = f"{type(update.optimizer).__name__} applies gradients eagerly"
            raise RuntimeError(exclusions.HELD_AND_EAGER.told(f"accumulate_steps={steps}", eagerly))
        overwritten = next((variable_name(v) for v in update.trained if is_overwritten(v)), "")
        if overwritten:
            over = f"{overwritten} is overwritten with its gradient"
            raise SettingsError(exclusions.HELD_AND_OVERWRITTEN.told(f"accumulate_steps={steps}", over))
        return Accumulation(self._job, steps, self._known.setdefault(update.optimizer, {}), update.trained)
