"""The table of hooks, installed and undone together."""

from __future__ import annotations

from tfdist.graph.job import Job
from tfdist.hooks import (
    batch_normalization,
    checkpoints,
    exceptions,
    exit_code,
    functions,
    gradients,
    keras_fit,
    moving_averages,
    optimizers,
    products,
    sessions,
)
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps

_TRAINING = (gradients, functions, optimizers, moving_averages, keras_fit, batch_normalization, sessions, products)
_TABLE = (*_TRAINING, checkpoints, exceptions, exit_code)


def install(job: Job, steps: Steps) -> Patches:
    """Hook into TensorFlow, Keras and, of several ranks, uncaught exceptions; ``undo`` of the result undoes it.

    Raises:
      HookError: this TensorFlow does not have the expected functions.
    """
    patches = Patches()
    try:
        for point in _TRAINING if job.world.size == 1 else _TABLE:
            point.hook(patches, job, steps)
    except BaseException:
        patches.undo()
        raise
    patches.on_undo(steps.eager.uninstalled)
    return patches
