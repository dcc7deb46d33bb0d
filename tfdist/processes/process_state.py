"""Process state: tells whether another rank of the machine is stopped or busy, since neither one responds.

See proc(5), /proc/PID/stat. Processes of another process namespace cannot be seen, and are not reported.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

STOPPED, GONE, RUNS, UNKNOWN = "stopped", "gone", "runs", ""
_STATE, _STARTED = 0, 19  # fields behind the program's name
_STATES = {"T": STOPPED, "t": STOPPED, "Z": GONE, "X": GONE}


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, identified by its ID and start time: a later process may have the same ID.

    Attributes:
      pid: process ID.
      started: start time in clock ticks since the machine's start; empty: unknown.
    """

    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        """Return this process."""
        try:
            return cls(os.getpid(), _fields(os.getpid())[_STARTED])
        except OSError:
            return cls(os.getpid(), "")

    def state(self) -> str:
        """Return ``STOPPED``, ``RUNS`` or ``GONE`` (also if hidden); ``UNKNOWN`` if Linux's files cannot be read."""
        try:
            fields = _fields(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return GONE if self.started else UNKNOWN
        except OSError:
            return UNKNOWN
        return _STATES.get(fields[_STATE], RUNS) if fields[_STARTED] == self.started else GONE


def _fields(pid: int) -> list[str]:
    # (The program's name, in brackets, may hold any characters.)
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
