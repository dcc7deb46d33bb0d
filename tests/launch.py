"""Starts programs under mpirun, with a timeout, as a user would."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TFDIST_RUN = Path(sysconfig.get_path("scripts"), "tfdist-run")
GRACE_SECONDS = 10.0  # between asking a command to end and killing it
EVERY_CASE = "TESTS_EVERY_CASE"  # variable that passes --every-case on to jobs
STARTUP = Path(__file__).parent / "startup"  # its sitecustomize.py runs first in processes that are started here


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a job ended; ``code`` is None if it had to be stopped."""

    code: int | None
    output: str
    errors: str
    seconds: float


def mpirun(
    ranks: int, arguments: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run ``python arguments`` on this number of ranks; a missing mpirun is a failure."""
    launcher = shutil.which("mpirun")
    assert launcher, "mpirun is not on PATH: scripts/test installs it"
    return run([launcher, "-n", str(ranks), sys.executable, *arguments], timeout_seconds, environment)


def run(
    command: Sequence[str],
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    with_children: bool = False,
) -> Finished:
    """Run a command in the project's root.

    Args:
      command: program and arguments.
      timeout_seconds: the command is ended after this time.
      environment: variables that are added to this process's environment.
      with_children: end the command's children with the command, if the command does not do so. Something else must
        end them when this process is killed.
    """
    start = time.monotonic()
    path = os.pathsep.join(filter(None, [str(STARTUP), str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as traces:
        everything = {**os.environ, "PYTHONPATH": path, "TFDIST_TRACE_FOLDER": traces, **(environment or {})}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=everything,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=with_children,
        )
        end = functools.partial(os.killpg, process.pid) if with_children else process.send_signal
        try:
            output, errors = process.communicate(timeout=timeout_seconds)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            output, errors = _ended(process, end)
            code = None
        except BaseException:  # pytest is interrupted: the ranks must not continue without it
            _ended(process, end)
            raise
    return Finished(code, output, errors, time.monotonic() - start)


def _ended(process: subprocess.Popen[str], end: Callable[[int], None]) -> tuple[str, str]:
    """End a process and return its output and errors; a launcher ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            end(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=GRACE_SECONDS)
    # Other processes may hold the pipes open forever.
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()
    return "", "ended, but something that it has started goes on and keeps its pipes open"
