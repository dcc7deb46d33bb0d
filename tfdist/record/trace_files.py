"""Trace files: the files and folders of flight recorders, as the settings choose them, and the removal of old ones."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import stat
import sys
import tempfile
import time
from typing import Any

from tfdist.core.files import is_own, opened, remove_old
from tfdist.core.log import log
from tfdist.core.settings import Settings
from tfdist.core.system import machine_identifier, runs
from tfdist.record.flight_recorder import FORMAT, HEAD_BYTES, LAST, FlightRecorder

TIMELINE_EVENTS = 50_000  # a timeline keeps the last ones: 12 MB
_PROGRAM = 200  # characters kept of a command line, which take up to 12 bytes each
_FOLDER, _FILE = re.compile("tfdist-[0-9a-f]{8}"), re.compile("rank-[0-9]+")
_DAY_SECONDS = 86_400
_KEPT_DAYS, _EMPTY_KEPT_DAYS = 7, 1


def job_name() -> str:
    """Return a name for the folder of a job, which nobody can guess."""
    return f"tfdist-{secrets.token_hex(4)}"


def new_folder(settings: Settings, name: str) -> str:
    """Make a job's folder on one machine, if it does not exist, and return its path; empty if there is none.

    A job with a timeline needs none. Old folders of this user's failed jobs are removed from the same place.
    """
    if settings.timeline:
        return ""
    place = settings.trace_folder or tempfile.gettempdir()
    folder = os.path.join(place, name)
    remove_old(place, _FOLDER, _is_old)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # another machine may have made it, on the same disk
        state = os.lstat(folder)
        if stat.S_ISDIR(state.st_mode) and is_own(state):
            return os.path.abspath(folder)
        problem: object = f"{folder} is not of this user alone; give another folder"
    except OSError as error:
        problem = error
    if settings.trace_folder:
        log(f"TFDIST_TRACE_FOLDER: {problem}; the job has no flight recorder")
    return ""


def _is_old(folder: int, files: list[str]) -> bool:
    if not _untouched(os.fstat(folder), _KEPT_DAYS if files else _EMPTY_KEPT_DAYS):
        return False
    for name in files:
        if not _FILE.fullmatch(name):
            return False
        with opened(name, os.O_NOFOLLOW | os.O_NONBLOCK, folder) as file:
            # A live rank writes each second, but a stopped one does not.
            state = os.fstat(file)
            if (
                not stat.S_ISREG(state.st_mode)
                or not _untouched(state, _KEPT_DAYS)
                or _lives(os.read(file, HEAD_BYTES))
            ):
                return False
    return True


def _untouched(state: os.stat_result, days: int) -> bool:
    """Return whether only this user may write there, and nobody has written for ``days`` days."""
    return is_own(state) and time.time() - state.st_mtime > days * _DAY_SECONDS


def _lives(head: bytes) -> bool:
    """Return whether the process of a file may still exist, or the file is not a flight recorder's."""
    try:
        found: dict[str, Any] = json.loads(head)
        return found["format"] != FORMAT or (found["machine"] == machine_identifier() and runs(found["pid"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return True


def remove_part(path: str) -> None:
    """Remove a rank's part of a timeline, which a failed job has left; another file stays."""
    with contextlib.suppress(OSError), opened(path, os.O_NOFOLLOW | os.O_NONBLOCK) as file:
        if FORMAT.encode() in os.read(file, HEAD_BYTES):
            os.unlink(path)


def timeline_file(timeline: str, rank: int | str) -> str:
    """Return the path of a rank's part of a timeline, before the parts are merged."""
    return f"{os.path.abspath(timeline)}.rank-{rank}"


def flight_recorder(settings: Settings, rank: int, size: int, folder: str) -> FlightRecorder:
    """Start and return a rank's flight recorder.

    Args:
      settings: with a ``timeline`` the file holds more events, and spans.
      rank: number of the rank.
      size: number of ranks of the job.
      folder: the job's folder, see ``new_folder``; empty: no file is written.
    """
    program = " ".join(sys.argv)[:_PROGRAM]
    head = {"rank": rank, "size": size, "host": platform.node(), "machine": machine_identifier(), "program": program}
    if settings.timeline:
        path = timeline_file(settings.timeline, rank)
        remove_part(path)
        return FlightRecorder(path, timeline_file(settings.timeline, "*"), head, TIMELINE_EVENTS, detailed=True)
    return FlightRecorder(os.path.join(folder, f"rank-{rank}") if folder else "", folder, head, LAST)
