"""Trace files: where a rank's flight recorder is kept, by the settings."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import sys
import tempfile
from pathlib import Path

from tfdist.core.flight_recorder import LAST, FlightRecorder
from tfdist.core.log import log
from tfdist.core.settings import Settings

TIMELINE_EVENTS = 50_000  # the last so many, 12 MB
_PROGRAM = 200  # characters of its command line, which take up to 12 bytes each
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # processes with the same one have the same clock


def job_name() -> str:
    """Of the folder of a job; nobody can foresee it."""
    return f"tfdist-{secrets.token_hex(4)}"


def new_folder(settings: Settings, name: str) -> str:
    """A job's folder on one machine, which may be there already; empty if there can be none, or none is needed."""
    if settings.timeline:
        return ""
    folder = os.path.join(settings.trace_folder or tempfile.gettempdir(), name)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        return os.path.abspath(folder)
    except OSError as error:
        if settings.trace_folder:
            log(f"TFDIST_TRACE_FOLDER: {error}; what the ranks do is not kept")
        return ""


def timeline_file(timeline: str, rank: int | str) -> str:
    """Where a rank's part of a timeline is until all are put together."""
    return f"{os.path.abspath(timeline)}.rank-{rank}"


def flight_recorder(settings: Settings, rank: int, size: int, folder: str) -> FlightRecorder:
    """A rank's, begun.

    Args:
      settings: with a ``timeline``, its file holds more.
      rank: whose.
      size: ranks of the job.
      folder: see ``new_folder``.
    """
    program = " ".join(sys.argv)[:_PROGRAM]
    head = {"rank": rank, "size": size, "host": platform.node(), "machine": _machine(), "program": program}
    if settings.timeline:
        path = timeline_file(settings.timeline, rank)
        with contextlib.suppress(OSError):
            os.unlink(path)  # of a job that failed
        return FlightRecorder(path, timeline_file(settings.timeline, "*"), head, TIMELINE_EVENTS, detailed=True)
    return FlightRecorder(os.path.join(folder, f"rank-{rank}") if folder else "", folder, head, LAST)


def _machine() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return platform.node()
