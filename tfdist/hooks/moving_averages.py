"""Hook of ``tf.train.ExponentialMovingAverage``: if steps are accumulated, averages move with the updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import moving_averages

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps
from tfdist.updates.conditional import due_of, if_due, move_each_step


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Hook tensorflow/python/training/moving_averages.py."""

    def apply(original: Callable[..., Any], self: Any, var_list: Any = None) -> Any:
        if tf.executing_eagerly() or not job.switches.settings.not_each_step:
            return original(self, var_list)
        averaged = tf.compat.v1.trainable_variables() if var_list is None else var_list
        due = due_of(averaged)
        if due is None:
            move_each_step(averaged)
            return original(self, var_list)
        return if_due(due, lambda: original(self, var_list))

    patches.replace(moving_averages.ExponentialMovingAverage, "apply", apply, ("self", "var_list"))
