"""How the scripts start MPI jobs of their own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Open MPI refuses root and more ranks than cores unless told; other MPIs ignore these.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def mpirun() -> str:
    """The launcher that belongs to this Python's environment, else the first on PATH."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    name = Path(sys.argv[0]).name
    return shutil.which("mpirun", path=path) or sys.exit(f"{name}: mpirun is not on PATH; pip install mpich")


def environment(**more: str) -> dict[str, str]:
    """Variables of a job that runs this checkout."""
    return {**_OPEN_MPI, **os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **more}
