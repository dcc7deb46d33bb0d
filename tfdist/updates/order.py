"""Order: the stages of an update, from the script's gradients to the optimizer's update."""

from __future__ import annotations

import functools

from tfdist.training.steps import Steps
from tfdist.updates.accumulation import Accumulations
from tfdist.updates.checkpointed import left_over_of
from tfdist.updates.conditional import WhenDue
from tfdist.updates.divergence import DivergenceGuard
from tfdist.updates.larc_of_settings import LarcOfSettings
from tfdist.updates.local_sgd import OwnSteps, local_sgd_of
from tfdist.updates.loss_scaling import loss_scaling_of
from tfdist.updates.pipeline import Known, Pipeline, Reduce, SetAlike
from tfdist.updates.wrapped import WrappedOptimizers


@functools.cache
def pipeline_of(steps: Steps) -> Pipeline:
    """Return the pipeline of this process."""
    job, blocks = steps.job, local_sgd_of(steps)
    return Pipeline(
        [
            WrappedOptimizers(job),  # with tfdist.horovod nothing is averaged automatically
            Known(steps),
            Accumulations(job),  # before the exchange, which counts the accumulated steps
            OwnSteps(blocks),
            Reduce(steps, left_over_of(steps).built),
            blocks,  # a block's beginning and end surround all operations that set its variables
            SetAlike(steps),
            loss_scaling_of(steps),  # decides on averages, so that all ranks leave the same updates out
            WhenDue(job),
            DivergenceGuard(job),  # checks only updates that are applied
            LarcOfSettings(job),  # last, to use the norms of the final gradients
        ]
    )
