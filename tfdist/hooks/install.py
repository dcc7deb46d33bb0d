"""Install: the table of hooks, which are installed and undone together."""

from __future__ import annotations

from types import ModuleType

from tfdist.graph.job import Job
from tfdist.hooks import (
    autocast,
    batch_normalization,
    checkpoints,
    exits,
    functions,
    gradients,
    keras_fit,
    moving_averages,
    optimizers,
    own_state,
    saves,
    sessions,
)
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps

_TRAINING = (
    *(gradients, functions, optimizers, moving_averages, keras_fit, batch_normalization, own_state, sessions),
    autocast,
)
_TABLE = (*_TRAINING, saves, checkpoints, exits)
Hooks = tuple[ModuleType, ...]


def every_hook(job: Job) -> Hooks:
    """Return all hooks of a job. A single process needs no hooks for saving files or ending other ranks."""
    return _TRAINING if job.world.size == 1 else _TABLE


def needed_hooks(job: Job) -> Hooks:
    """Return the hooks that a job needs; for a single process only those that its settings need."""
    settings = job.switches.settings
    if job.world.size > 1 or not job.switches.automatic or settings.changes_updates:
        return every_hook(job)
    return (autocast,) if settings.affects_one_process else ()


def install(hooks: Hooks, job: Job, steps: Steps) -> Patches:
    """Install hooks into TensorFlow, Keras and Python; ``undo`` of the result removes them.

    Raises:
      HookError: this TensorFlow does not have the expected functions.
    """
    patches = Patches()
    try:
        for point in hooks:
            point.hook(patches, job, steps)
        patches.installed()
    except BaseException:
        patches.undo()
        raise
    patches.on_undo(steps.eager.uninstalled)
    return patches
