"""Timeline: records collective operations between two calls, in a file for chrome://tracing."""

from __future__ import annotations

from tfdist.core.log import announce
from tfdist.core.trace_files import TIMELINE_EVENTS, remove_part, timeline_file
from tfdist.horovod._state import NOT_INITIALIZED, state
from tfdist.horovod.rank_ops import barrier
from tfdist.trace.timeline import put_together

_begun: list[str] = []


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to record this rank's collective operations. ``TFDIST_TIMELINE`` records a whole job.

    Args:
      file_path: file that rank 0 writes when the timeline ends.
      mark_cycles: has no meaning here, since there are no cycles.

    Raises:
      ValueError: ``init`` was not called, or a timeline is being recorded.
    """
    if not state.begun:
        raise ValueError(NOT_INITIALIZED)
    if _begun:
        raise ValueError(f"the timeline {_begun[0]} has begun: call stop_timeline before another one")
    part = timeline_file(file_path, state.job.world.rank)
    remove_part(part)
    if state.job.world.size == 1:
        announce("no timeline is recorded for one process")
    elif not state.job.recorder.begin_timeline(part, TIMELINE_EVENTS):
        announce(f"no timeline is recorded: {part} cannot be written")
    _begun.append(file_path)


def stop_timeline() -> None:
    """End the timeline; rank 0 writes the file.

    Collective: all ranks.

    Raises:
      ValueError: no timeline has begun.
    """
    if not _begun:
        raise ValueError("no timeline has begun: call start_timeline before")
    path = _begun.pop()
    state.job.recorder.end_timeline()
    barrier()  # until all ranks have written their parts
    if state.job.world.rank == 0 and state.job.world.size > 1:
        put_together(path, state.job.world.size)
