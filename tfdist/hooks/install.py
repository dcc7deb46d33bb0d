"""The table of hooks, installed and undone together."""

from __future__ import annotations

from types import ModuleType

from tfdist.graph.job import Job
from tfdist.hooks import (
    autocast,
    batch_normalization,
    checkpoints,
    exceptions,
    exit_code,
    functions,
    gradients,
    keras_fit,
    moving_averages,
    optimizers,
    sessions,
)
from tfdist.hooks.patches import Patches
from tfdist.hooks.saved import saves
from tfdist.training.steps import Steps

_TRAINING = (gradients, functions, optimizers, moving_averages, keras_fit, batch_normalization, sessions, autocast)
_TABLE = (*_TRAINING, saves, checkpoints, exceptions, exit_code)
Hooks = tuple[ModuleType, ...]


def every_hook(job: Job) -> Hooks:
    """What a job of several ranks hooks into; one process has no others to end."""
    return _TRAINING if job.world.size == 1 else _TABLE


def needed_hooks(job: Job) -> Hooks:
    """The same, but for one process alone what its settings need."""
    settings = job.switches.settings
    if job.world.size > 1 or not job.switches.automatic or settings.changes_updates:
        return every_hook(job)
    return (autocast,) if settings.of_use_alone else ()


def install(hooks: Hooks, job: Job, steps: Steps) -> Patches:
    """Hook into TensorFlow, Keras and, of several ranks, uncaught exceptions; ``undo`` of the result undoes it.

    Raises:
      HookError: this TensorFlow does not have the expected functions.
    """
    patches = Patches()
    try:
        for point in hooks:
            point.hook(patches, job, steps)
    except BaseException:
        patches.undo()
        raise
    patches.on_undo(steps.eager.uninstalled)
    return patches
