"""Wrapped optimizers of ``tfdist.horovod``, which averages nothing automatically: the script requests reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.compat.optimizers import tree
from tfdist.core.log import announce
from tfdist.graph.job import Job
from tfdist.updates.pipeline import GoOn, JobStage, Pairs, Update

_ATTRIBUTE = "_tfdist_reduction"
# Reduces the gradients, and calls the second argument with them and the name, in the steps that are updates.
Reduction = Callable[[Pairs, Callable[[Pairs, str | None], Any], str | None], Any]


def wrap(optimizer: Any, reduction: Reduction) -> None:
    """Reduce the gradients of an optimizer of Keras 3 or tf_keras with ``reduction``."""
    object.__setattr__(optimizer, _ATTRIBUTE, reduction)  # Keras's __setattr__ would search the value for variables


def reduction_of(optimizer: Any) -> Reduction | None:
    """Return the reduction of an optimizer, or of an optimizer inside it; None if there is none."""
    found = (getattr(one, _ATTRIBUTE, None) for one in tree(optimizer))
    return next((one for one in found if one is not None), None)


class WrappedOptimizers(JobStage):
    """Stage for ``tfdist.horovod``: runs the reduction that a script has requested, instead of all later stages."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._said = False

    def update(self, update: Update, go_on: GoOn) -> Any:
        switches, optimizer = self._job.switches, update.optimizer
        if switches.automatic:
            return go_on(update)
        if switches.alone_depth:
            return update.call(update.pairs, update.name)
        reduction = reduction_of(optimizer)
        if reduction is not None:
            return reduction(update.pairs, update.call, update.name)
        if self._job.world.size > 1 and not switches.wrapped and not self._said:
            self._said = True
            announce(
                f"{type(optimizer).__name__} applies each rank's own gradients. With tfdist.horovod, only gradients of "
                "a DistributedOptimizer or DistributedGradientTape, and results of hvd.allreduce, are averaged"
            )
        return update.call(update.pairs, update.name)
