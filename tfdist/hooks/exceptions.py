"""Hook of uncaught exceptions: one rank's failure ends the job, with its number, its traceback, and an exit code."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps
from tfdist.transport.abort import abort


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Take ``sys.excepthook`` over; the previous one is not called, since the job is over."""
    world, previous = job.world, sys.excepthook

    def end_the_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not patches.active:  # called by a hook that has been put around it
            previous(kind, error, trace)
            return
        text = "".join(traceback.format_exception(kind, error, trace))
        abort(world, f"tfdist: rank {world.rank} of {world.size} failed:\n{text}")

    def give_back() -> None:
        if sys.excepthook is end_the_job:
            sys.excepthook = previous

    sys.excepthook = end_the_job
    patches.on_undo(give_back)
