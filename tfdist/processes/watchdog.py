"""Watchdog: the rank's side of the watchdog. The program that watches is ``watchdog_process``."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tfdist.core.environment import launcher_connection, started_by_slurm_pmi
from tfdist.processes import absent_ranks, watchdog_process
from tfdist.processes.deadline import process_deadline

_PROGRAM = Path(watchdog_process.__file__)
_START_SECONDS, _END_SECONDS = 30.0, 5.0


def end_job(exit_code: int = 1) -> None:
    """Ask the launcher to end all ranks, before MPI has begun, if it is a launcher that takes such requests."""
    connection = _connection()
    if connection is not None:
        watchdog_process.end_job(connection, exit_code)


def _connection() -> int | None:
    # (Slurm's PMI has a connection, too, but Slurm handles lost processes itself.)
    return None if started_by_slurm_pmi() else launcher_connection()


@contextlib.contextmanager
def others_expected(rank: int | None, seconds: float) -> Iterator[None]:
    """Watch the start of MPI in this block. A rank that ends before MPI begins ends the job (``absent_ranks``).

    Args:
      rank: rank of this process; None: unknown.
      seconds: time limit for the start of MPI; then the job ends.
    """
    connection = _connection()
    looking = None
    if connection is not None and rank is not None:
        program = [sys.executable, "-I", "-S", absent_ranks.__file__, str(rank), str(connection), str(seconds)]
        with contextlib.suppress(OSError):  # if no process can be started, the rank continues without
            looking = subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=(connection,))
    if looking is None:
        with process_deadline(seconds):
            yield
        return
    try:
        yield
    finally:
        try:
            looking.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:  # it was stopped, or waits for the kernel
            looking.kill()


class Watchdog:
    """A small process for each rank, which reports the end of the rank if the rank cannot.

    Args:
      rank: rank of this process.
      size: number of ranks of the job.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._pid = os.getpid()
        self._starting: subprocess.Popen[bytes] | None = None
        connection = _connection()
        exported_variables = () if connection is None else (connection,)
        arguments = map(str, (rank, size, self._pid, -1 if connection is None else connection))
        # (If no process can be started, the rank continues without.)
        with contextlib.suppress(OSError):
            command = [sys.executable, "-I", "-S", str(_PROGRAM), *arguments]
            self._starting = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=exported_variables, bufsize=0)

    def begun(self) -> None:
        """Wait until the watchdog is no child of this process any more, because scripts may wait for all children."""
        if self._starting is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._starting.wait(_START_SECONDS)

    def ended(self) -> None:
        """Tell the watchdog that this rank has come to its end."""
        self._say(watchdog_process.ENDED)

    def aborts(self) -> None:
        """Tell the watchdog that this rank itself ends the job and reports why."""
        self._say(watchdog_process.ABORTS)

    def _say(self, word: bytes) -> None:
        if self._starting is not None and self._starting.stdin is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._starting.stdin.write(word)
