"""Companion: a small process that watches this rank from outside; ``companion_process`` is its program."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator

from tfdist.core.environment import Launch, launcher_connection, started_by_slurm_pmi
from tfdist.processes import companion_process
from tfdist.processes.deadline import process_deadline

_START_SECONDS = 30.0


def end_job(exit_code: int = 1) -> None:
    """Ask the launcher to end all ranks, before MPI has begun, if it is a launcher that takes such requests."""
    connection = _connection()
    if connection is not None:
        companion_process.end_job(connection, exit_code)


def _connection() -> int | None:
    # (Slurm's PMI has a connection, too, but Slurm handles lost processes itself.)
    return None if started_by_slurm_pmi() else launcher_connection()


class Companion:
    """A small process, from the time before MPI begins until the rank's end.

    Args:
      launched: the launcher's numbers of this rank.
      seconds: time limit for all ranks to begin; then the job ends.
    """

    def __init__(self, launched: Launch, seconds: float) -> None:
        self._pid = os.getpid()
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        connection = _connection()
        self._watches_start = connection is not None
        exported, limit = ((), math.inf) if connection is None else ((connection,), seconds)
        arguments = map(str, (launched.rank, launched.size or "some", self._pid, *(exported or (-1,)), limit))
        # (If no process can be started, the rank continues without.)
        with contextlib.suppress(OSError):
            command = [sys.executable, "-I", "-S", companion_process.__file__, *arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=exported, bufsize=0)

    @contextlib.contextmanager
    def start(self) -> Iterator[None]:
        """Watch the start of MPI in this block: a rank that has ended, or does not come in time, ends the job."""
        by_timer = not (self._watches_start and self._process)
        with process_deadline(self._seconds) if by_timer else contextlib.nullcontext():
            yield
        self._say(companion_process.BEGUN)
        if self._process is not None:  # it is no child of this process any more: scripts may wait for all children
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_START_SECONDS)

    def ended(self) -> None:
        """Tell the companion that this rank has come to its end."""
        self._say(companion_process.ENDED)

    def aborts(self) -> None:
        """Tell the companion that this rank itself ends the job and reports why."""
        self._say(companion_process.ABORTS)

    def _say(self, word: bytes) -> None:
        if self._process is not None and self._process.stdin is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._process.stdin.write(word)
