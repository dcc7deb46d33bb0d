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
from collections.abc import Iterator
from typing import Any

from tfdist.core.flight_recorder import FORMAT, HEAD_BYTES, LAST, FlightRecorder
from tfdist.core.log import log
from tfdist.core.settings import Settings
from tfdist.core.system import machine_identifier, runs

TIMELINE_EVENTS = 50_000  # a timeline keeps the last ones: 12 MB
_PROGRAM = 200  # characters kept of a command line, which take up to 12 bytes each
_FOLDER, _FILE = re.compile("tfdist-[0-9a-f]{8}"), re.compile("rank-[0-9]+")
_DAY_SECONDS = 86_400
_KEPT_DAYS, _EMPTY_KEPT_DAYS = 7, 1
_CLEANING_SECONDS = 0.5  # then the removal stops; the next job removes the rest


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
    _remove_old(place)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        return os.path.abspath(folder)
    except OSError as error:
        if settings.trace_folder:
            log(f"TFDIST_TRACE_FOLDER: {error}; the job has no flight recorder")
        return ""


def _remove_old(place: str) -> None:
    """Remove this user's folders of jobs that ended long ago.

    Everybody may create files in a temporary folder. So links are not followed, and the checks and the removal use the
    same descriptors. A folder stays if it has another owner, others may write to it, or it holds other files.
    """
    deadline = time.monotonic() + _CLEANING_SECONDS
    with contextlib.suppress(OSError), _opened(place, os.O_DIRECTORY) as parent:
        for name in filter(_FOLDER.fullmatch, os.listdir(parent)):
            # Another job may remove the same folder, or this user may not open it.
            with contextlib.suppress(OSError), _opened(name, os.O_DIRECTORY | os.O_NOFOLLOW, parent) as folder:
                files = os.listdir(folder)
                if _is_old(folder, files):
                    for file in files:
                        os.unlink(file, dir_fd=folder)
                    os.rmdir(name, dir_fd=parent)
            if time.monotonic() > deadline:
                return


def _is_old(folder: int, files: list[str]) -> bool:
    if not _untouched(os.fstat(folder), _KEPT_DAYS if files else _EMPTY_KEPT_DAYS):
        return False
    for name in files:
        if not _FILE.fullmatch(name):
            return False
        with _opened(name, os.O_NOFOLLOW | os.O_NONBLOCK, folder) as file:
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
    ours = state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return ours and time.time() - state.st_mtime > days * _DAY_SECONDS


def _lives(head: bytes) -> bool:
    """Return whether the process of a file may still exist, or the file is not a flight recorder's."""
    try:
        found: dict[str, Any] = json.loads(head)
        return found["format"] != FORMAT or (found["machine"] == machine_identifier() and runs(found["pid"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return True


@contextlib.contextmanager
def _opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
        with contextlib.suppress(OSError):
            os.unlink(path)  # left by a failed job
        return FlightRecorder(path, timeline_file(settings.timeline, "*"), head, TIMELINE_EVENTS, detailed=True)
    return FlightRecorder(os.path.join(folder, f"rank-{rank}") if folder else "", folder, head, LAST)
