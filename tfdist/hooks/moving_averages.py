"""Hooks of TensorFlow's moving averages: if steps are accumulated, ``ExponentialMovingAverage`` moves with the updates.

The end of a block of local steps sets all averages to the mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import moving_averages

from tfdist.compat.variables import MOVED, native, note
from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches, before
from tfdist.training.steps import Steps
from tfdist.updates.conditional import move_if_due
from tfdist.updates.local_sgd import moves


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Hook tensorflow/python/training/moving_averages.py."""

    moved = before(lambda variable: note([native(variable)], MOVED))

    def apply(original: Callable[..., Any], self: Any, var_list: Any = None) -> Any:
        averaged = tf.compat.v1.trainable_variables() if var_list is None else var_list
        if tf.executing_eagerly() or not job.switches.settings.not_each_step:
            result = original(self, var_list)
            if job.switches.settings.sync != "gradients":
                for variable in averaged:
                    moves(native(variable), self.average(variable))
            return result
        return move_if_due(averaged, lambda: original(self, var_list))

    patches.replace_everywhere(moving_averages, "assign_moving_average", moved, ("variable",))
    patches.replace(moving_averages.ExponentialMovingAverage, "apply", apply, ("self", "var_list"))
