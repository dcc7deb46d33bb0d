"""Order: the stages of an update, from the script's gradients to the optimizer's update."""

from __future__ import annotations

import functools

from tfdist.training.steps import Steps
from tfdist.updates.accumulation import Accumulations
from tfdist.updates.conditional import ConditionalUpdates
from tfdist.updates.divergence import DivergenceGuard
from tfdist.updates.larc import LarcOfSettings
from tfdist.updates.local_sgd import local_sgd_of
from tfdist.updates.loss_scaling import loss_scaling_of
from tfdist.updates.pipeline import Pipeline, Reduce
from tfdist.updates.wrapped import WrappedOptimizers


@functools.cache
def pipeline_of(steps: Steps) -> Pipeline:
    """Return the pipeline of this process."""
    job = steps.job
    return Pipeline(
        [
            WrappedOptimizers(job),  # with tfdist.horovod nothing is averaged automatically
            Accumulations(job),  # before the exchange, which counts the accumulated steps
            local_sgd_of(steps),  # a block surrounds the exchange, which it replaces, and all that sets its variables
            Reduce(steps),
            loss_scaling_of(steps),  # decides on averages, so that all ranks leave the same updates out
            ConditionalUpdates(job),
            DivergenceGuard(job),  # checks only updates that are applied
            LarcOfSettings(job),  # last, to use the norms of the final gradients
        ]
    )
