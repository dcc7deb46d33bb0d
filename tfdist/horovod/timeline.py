"""Timeline: what the ranks do with each other from one call to another, in a file for chrome://tracing."""

from __future__ import annotations

import os

from tfdist.core.log import announce
from tfdist.horovod._state import NOT_INITIALIZED, state
from tfdist.horovod.variables import allgather_object
from tfdist.trace import chrome
from tfdist.trace.ranks import load

_EVENTS = 50_000  # the last so many of each rank
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
    part = _part(file_path)
    if os.path.exists(part):
        os.unlink(part)
    if state.job.world.size > 1 and not state.job.recorder.begin_timeline(part, _EVENTS):
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
    part = _part(path)
    parts = allgather_object(part if os.path.exists(part) else None, name=f"timeline {path}")
    if state.job.world.rank == 0:
        _write(path, [p for p in parts if p is not None and os.path.exists(p)], len(parts))


def _write(path: str, files: list[str], ranks: int) -> None:
    if ranks == 1:
        announce("there is no timeline of one process")
        return
    if len(files) < ranks:
        announce(f"{path} has {len(files)} of {ranks} ranks: the others' files are on other machines ({path}.rank-*)")
    if files:
        chrome.write(path, load(files))
        for file in files:
            os.unlink(file)


def _part(path: str) -> str:
    return f"{os.path.abspath(path)}.rank-{state.job.world.rank}"
