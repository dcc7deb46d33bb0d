"""Environment variables of this process: what the launcher says, and defaults handed on to the libraries.

The only module that reads or writes ``os.environ``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping


def variables() -> Mapping[str, str]:
    """All of them, as they are now."""
    return os.environ


@dataclasses.dataclass(frozen=True)
class Launch:
    """What the launcher put into this process's environment.

    Attributes:
      size: processes started together; None where the launcher does not say.
      rank: this process's number among them, likewise.
      local_rank: its number among those of its machine; the rank where the launcher does not say.
    """

    size: int | None
    rank: int | None
    local_rank: int | None = None


# Set by: Open MPI's mpirun; MPICH's, Intel's and MVAPICH's Hydra and Slurm's PMI plug-ins; Slurm itself, per step.
# Only a started step has SLURM_STEP_NUM_TASKS with SLURM_PROCID inside srun; the batch script itself is one process.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
)


def launch(environment: Mapping[str, str] | None = None) -> Launch | None:
    """How this process was started: None without a launcher (a plain ``python script.py``)."""
    environment = variables() if environment is None else environment
    for size, rank, local_rank in _LAUNCHERS:
        if size in environment and rank in environment:
            number = int(environment[rank])
            return Launch(int(environment[size]), number, int(environment.get(local_rank, number)))
    if "PMIX_RANK" in environment:  # a PMIx launcher (prterun, srun --mpi=pmix) that tells the size through MPI only
        number = int(environment["PMIX_RANK"])
        return Launch(None, number, number)
    return None


# What a rank must get from here on a machine that mpirun reaches through ssh, where a login shell sets its own.
_HANDED_ON = ("TFDIST_", "TF_", "XLA_", "OMP_", "PYTHON")
_HANDED_ON_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_BATCH_SYSTEMS = {"SLURM_JOB_ID": "Slurm", "PBS_NODEFILE": "PBS", "LSB_JOBID": "LSF", "PE_HOSTFILE": "Grid Engine"}


def handed_on(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this environment that ranks on other machines need, by name."""
    environment = variables() if environment is None else environment
    return {
        name: environment[name]
        for name in sorted(environment)
        if name.startswith(_HANDED_ON) or name in _HANDED_ON_NAMES
    }


def rank_defaults(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that a launcher sets for the ranks unless the user has."""
    environment = variables() if environment is None else environment
    # From this size on (256 KiB) glibc copies past the caches, which makes the copies of gradients faster. The C
    # library reads it before main: an import cannot set it. Elsewhere than on x86 it is ignored.
    defaults = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
    return {name: value for name, value in defaults.items() if name not in environment}


def batch_system(environment: Mapping[str, str] | None = None) -> str:
    """The batch system whose allocation this process runs in; empty if there is none."""
    environment = variables() if environment is None else environment
    return next((system for variable, system in _BATCH_SYSTEMS.items() if variable in environment), "")


def set_default(variable: str, value: str) -> bool:
    """Set an environment variable for the libraries of this process unless the user has; tells whether it did."""
    if variable in os.environ:
        return False
    os.environ[variable] = value
    return True


def overwrite(variable: str, choose: Callable[[str | None], str | None]) -> None:
    """Replace a variable by what ``choose`` makes of it; None leaves it alone."""
    chosen = choose(os.environ.get(variable))
    if chosen is not None:
        os.environ[variable] = chosen
