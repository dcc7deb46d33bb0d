"""Hook of uncaught exceptions: one rank's failure ends the job, with its number, its traceback, and an exit code.

A failure in a thread ends the job too: otherwise the other ranks would wait for the exchanges of that thread.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from tfdist.graph.job import Job
from tfdist.hooks.abort import abort
from tfdist.hooks.patches import Patches
from tfdist.processes.exit_code import note
from tfdist.training.steps import Steps


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Replace ``sys.excepthook`` and ``threading.excepthook``.

    The previous hook of the main thread is not called, since the job is over. In a forked process the previous hooks
    run, since that process is not the rank.
    """
    pid = os.getpid()

    def active() -> bool:
        return patches.active and os.getpid() == pid

    _of_the_main_thread(patches, job, active)
    _of_other_threads(patches, job, active)


def _of_the_main_thread(patches: Patches, job: Job, active: Callable[[], bool]) -> None:
    world, previous = job.world, sys.excepthook

    def end_the_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not active():  # called by a hook around it, or in a child process
            note(1)
            previous(kind, error, trace)
            return
        text = "".join(traceback.format_exception(kind, error, trace))
        abort(world, f"tfdist: rank {world.rank} of {world.size} failed:\n{text}")

    patches.assign(sys, "excepthook", end_the_job)


def _of_other_threads(patches: Patches, job: Job, active: Callable[[], bool]) -> None:
    world, previous = job.world, threading.excepthook
    own = previous is not threading.__excepthook__

    def end_the_job(failure: threading.ExceptHookArgs) -> None:
        kind, error, trace, thread = failure
        # After the program has ended, a daemon thread may lose the objects that it uses, which harms no rank.
        over = thread is not None and thread.daemon and not threading.main_thread().is_alive()
        passed_on = active() and not issubclass(kind, SystemExit) and not over
        if own or not passed_on:
            previous(failure)
        if passed_on:
            text = "".join(traceback.format_exception(kind, error, trace))
            name = thread.name if thread is not None else "a thread"
            abort(world, f"tfdist: rank {world.rank} of {world.size} failed in {name}:\n{text}")

    patches.assign(threading, "excepthook", end_the_job)
