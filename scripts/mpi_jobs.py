"""MPI jobs: the launcher and environment of the jobs that scripts start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHRASEBOOK = ROOT / "scripts/examples/demo/phrasebook.py"
# Without these, Open MPI refuses root and more ranks than cores; other MPIs ignore them.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def mpirun() -> str:
    """Return the mpirun of this Python's environment, else the first one on PATH."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    name = Path(sys.argv[0]).name
    return shutil.which("mpirun", path=path) or sys.exit(f"{name}: mpirun is not on PATH; pip install mpich")


def has_gpu() -> bool:
    """Return whether programs that this process starts will find an NVIDIA GPU; opens no library."""
    return os.path.exists("/dev/nvidia0") and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def environment(**more: str) -> dict[str, str]:
    """Return the environment variables of a job that runs this checkout."""
    return {**_OPEN_MPI, **os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **more}


def finish(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a job to its end, and return its output. If this script is terminated, the job is terminated too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                output, errors = process.communicate()
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
