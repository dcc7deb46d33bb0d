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
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TFDIST_RUN = ROOT / "scripts" / "tfdist-run"
GRACE_SECONDS = 10.0  # for what is made to end
STARTUP = Path(__file__).parent / "startup"  # what processes started here do first


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
    """Run ``python arguments`` on so many ranks; a missing mpirun is a failure."""
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
      command: of the program and its arguments.
      timeout_seconds: it is made to end after that.
      environment: beside this process's own.
      with_children: whether its children are ended with it: those of a command that does not do so itself. They must
        have another owner, too, which ends them when this process is killed.
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
        except BaseException:  # pytest is interrupted: the ranks are not to go on without it
            _ended(process, end)
            raise
    return Finished(code, output, errors, time.monotonic() - start)


def _ended(process: subprocess.Popen[str], end: Callable[[int], None]) -> tuple[str, str]:
    """What a process had to say that is made to end; the launcher ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            end(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=GRACE_SECONDS)
    # Whoever still has its pipes may have them forever.
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()
    return "", "ended, but something that it has started goes on and keeps its pipes open"
