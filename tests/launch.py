"""Starts programs under mpirun, with a timeout, as a user would."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TFDIST_RUN = ROOT / "scripts" / "tfdist-run"
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


def run(command: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command in the project's root."""
    start = time.monotonic()
    path = os.pathsep.join(filter(None, [str(STARTUP), str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as traces:
        everything = {**os.environ, "PYTHONPATH": path, "TFDIST_TRACE_FOLDER": traces, **(environment or {})}
        process = subprocess.Popen(
            command, cwd=ROOT, env=everything, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            output, errors = process.communicate(timeout=timeout_seconds)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            output, errors = _ended(process)
            code = None
        except BaseException:  # pytest is interrupted: the ranks are not to go on without it
            _ended(process)
            raise
    return Finished(code, output, errors, time.monotonic() - start)


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process had to say that is made to end; the launcher ends its ranks."""
    process.terminate()
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
