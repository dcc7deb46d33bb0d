"""Process state of a machine's other ranks, as Linux tells it: a stopped process and one that is busy are both silent.

See proc(5), /proc/PID/stat. Processes of another process namespace cannot be seen, and are not spoken of.
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
    """A process, told from a later one with the same number.

    Attributes:
      pid: its number.
      started: clock ticks since the machine's start; empty: unknown.
    """

    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        """This one."""
        try:
            return cls(os.getpid(), _fields(os.getpid())[_STARTED])
        except OSError:
            return cls(os.getpid(), "")

    def state(self) -> str:
        """``STOPPED``, ``RUNS``, or ``GONE``, as one that is hidden seems to be; ``UNKNOWN`` without Linux's files."""
        try:
            fields = _fields(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return GONE
        except OSError:
            return UNKNOWN
        return _STATES.get(fields[_STATE], RUNS) if fields[_STARTED] == self.started else GONE


def _fields(pid: int) -> list[str]:
    # (The program's name, in brackets, may hold any characters.)
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
