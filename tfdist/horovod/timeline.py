"""Timeline: what the ranks do with each other from one call to another, in a file for chrome://tracing."""

from __future__ import annotations

import contextlib
import os

from tfdist.core.log import announce
from tfdist.core.trace_files import TIMELINE_EVENTS, timeline_file
from tfdist.horovod._state import NOT_INITIALIZED, state
from tfdist.horovod.rank_ops import barrier
from tfdist.trace.timeline import put_together

_begun: list[str] = []


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to note what this rank does with the others. ``TFDIST_TIMELINE`` is for a whole job.

    Args:
      file_path: of the timeline, which rank 0 writes when it ends.
      mark_cycles: has no meaning here: there are no cycles.

    Raises:
      ValueError: ``init`` was not called, or a timeline has begun.
    """
    if not state.begun:
        raise ValueError(NOT_INITIALIZED)
    if _begun:
        raise ValueError(f"the timeline {_begun[0]} has begun: call stop_timeline before another one")
    part = timeline_file(file_path, state.job.world.rank)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)  # of a job that failed
    if state.job.world.size == 1:
        announce("there is no timeline of one process")
    elif not state.job.recorder.begin_timeline(part, TIMELINE_EVENTS):
        announce(f"there will be no timeline: {part} cannot be written")
    _begun.append(file_path)


def stop_timeline() -> None:
    """End it, and write the file.

    Collective: all ranks.

    Raises:
      ValueError: none has begun.
    """
    if not _begun:
        raise ValueError("no timeline has begun: call start_timeline before")
    path = _begun.pop()
    state.job.recorder.end_timeline()
    barrier()  # what the others have written is there
    if state.job.world.rank == 0 and state.job.world.size > 1:
        put_together(path, state.job.world.size)
