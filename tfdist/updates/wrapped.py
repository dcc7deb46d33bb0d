"""Wrapped optimizers: where nothing is averaged by itself, those whose gradients a script has asked to be reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tfdist.compat.optimizers import chain
from tfdist.core.log import announce
from tfdist.graph.job import Job
from tfdist.updates.pipeline import GoOn, Pairs, Stage, Update

_ATTRIBUTE = "_tfdist_reduction"


class WrappedReduction(Protocol):
    """What a script has wrapped an optimizer with."""

    def update(self, pairs: Pairs, apply: Callable[[Pairs, str | None], Any], name: str | None = None) -> Any:
        """Have what ``apply`` does done with other gradients, under a name, when it is time."""


def wrap(optimizer: Any, reduction: WrappedReduction) -> None:
    """Have what an optimizer of Keras 3 or tf_keras applies reduced so."""
    object.__setattr__(optimizer, _ATTRIBUTE, reduction)  # not as Keras sets attributes: it looks for variables in them


def reduction_of(optimizer: Any) -> WrappedReduction | None:
    """Of an optimizer, or of one inside it."""
    found: Iterator[WrappedReduction | None] = (getattr(one, _ATTRIBUTE, None) for one in chain(optimizer))
    return next((one for one in found if one is not None), None)


class WrappedOptimizers(Stage):
    """Where nothing is averaged by itself: what a script has asked for, in place of all stages behind.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said = False

    def update(self, update: Update, go_on: GoOn) -> Any:
        switches, optimizer = self._job.switches, update.optimizer
        if switches.automatic:
            return go_on(update)
        if switches.alone_depth:
            return update.call(update.pairs, update.name)
        reduction = reduction_of(optimizer)
        if reduction is not None:
            return reduction.update(update.pairs, update.call, update.name)
        if self._job.world.size > 1 and not switches.wrapped and not self._said:
            self._said = True
            announce(
                f"{type(optimizer).__name__} applies each rank's own gradients: with tfdist.horovod only those of a "
                "DistributedOptimizer or a DistributedGradientTape, or what hvd.allreduce returns, are averaged"
            )
        return update.call(update.pairs, update.name)
