"""Environment variables of this process: what the launcher says, and defaults handed on to the libraries.

The only module that reads or writes ``os.environ``.
"""

from __future__ import annotations

import dataclasses
import os
import stat
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
      local_size: processes of this machine; None where the launcher does not say.
    """

    size: int | None
    rank: int | None
    local_rank: int | None = None
    local_size: int | None = None


# Set by: Open MPI's mpirun; MPICH's, Intel's and MVAPICH's Hydra and Slurm's PMI plug-ins; Slurm itself, per step.
# Only a started step has SLURM_STEP_NUM_TASKS with SLURM_PROCID inside srun; the batch script itself is one process.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", ""),
)


def launch(environment: Mapping[str, str] | None = None) -> Launch | None:
    """How this process was started: None without a launcher (a plain ``python script.py``), and by a rank."""
    environment = variables() if environment is None else environment
    if parent_rank(environment) is not None:
        return None
    for size, rank, local_rank, local_size in _LAUNCHERS:
        if size in environment and rank in environment:
            number, here = int(environment[rank]), environment.get(local_size)
            local = int(environment.get(local_rank, number))
            return Launch(int(environment[size]), number, local, None if here is None else int(here))
    if "PMIX_RANK" in environment:  # a PMIx launcher (prterun, srun --mpi=pmix) that tells the size through MPI only
        number = int(environment["PMIX_RANK"])
        return Launch(None, number, number)
    return None


# A rank leaves its process and its launcher there for its children, who inherit all that the launcher says, too. (No
# setting: the name does not begin as theirs do.)
_MARK = "_TFDIST_RANK"
# What tells one launcher's rank from another's. Not all variables with such names: MPI sets some as it starts.
_IDENTITY = (
    *("PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_FD", "PMI_PORT", "PMI_ID", "PMI_JOBID", "PMI_RANK"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
)


def mark(rank: int) -> None:
    """This process is about to start MPI as a rank, which its children are not: they find what is left here."""
    os.environ[_MARK] = f"{os.getpid()} {rank} {_launcher(os.environ)}"


def parent_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """The rank that this process is a child of, grandchildren included; None if it is none's.

    A launcher that such a child has started has ranks of its own, which are nobody's children.
    """
    found = _marked(variables() if environment is None else environment)
    return None if found is None or found[0] == os.getpid() else found[1]


def begun_before(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process was a rank already, before ``os.exec`` put this program into it."""
    found = _marked(variables() if environment is None else environment)
    return found is not None and found[0] == os.getpid()


def _marked(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The process and the number of the rank whose launcher's variables these are, if it has left its mark."""
    if _MARK not in environment:
        return None
    pid, rank, launcher = environment[_MARK].split(" ", 2)
    # Of another launcher, that is, unless Hydra's connection was closed on the way: then it is inherited in name only.
    anew = _launcher(environment) not in (launcher, "") and os.getppid() != int(pid)
    return None if anew else (int(pid), int(rank))


def _launcher(environment: Mapping[str, str]) -> str:
    """What stands for a launcher's rank; empty if its connection to the launcher is not open in this process."""
    said = " ".join(f"{name}={environment[name]}" for name in _IDENTITY if name in environment)
    if "PMI_FD" not in environment:
        return said
    # Hydra numbers its jobs alike: the socket tells one from another. Most children do not inherit it.
    descriptor = launcher_connection(environment)
    return "" if descriptor is None else f"{said} socket={os.fstat(descriptor).st_ino}"


def launcher_connection(environment: Mapping[str, str] | None = None) -> int | None:
    """The open socket to the launcher that it has told of (Hydra, Slurm's PMI), as a file descriptor."""
    environment = variables() if environment is None else environment
    try:
        descriptor = int(environment["PMI_FD"])
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    except (KeyError, ValueError, OSError):
        return None


def started_by_slurm_pmi(environment: Mapping[str, str] | None = None) -> bool:
    """Whether it is Slurm's own PMI-1 or 2 that this rank meets the others through (srun --mpi=pmi2)."""
    environment = variables() if environment is None else environment
    # An mpirun that was started in Slurm's job has its own PMI, and names local ranks.
    return {"SLURM_STEP_ID", "PMI_FD", "PMI_JOBID"} <= environment.keys() and "MPI_LOCALRANKID" not in environment


def started_by_pmix(environment: Mapping[str, str] | None = None) -> bool:
    """Whether ranks can meet through PMIx alone: Open MPI's mpirun has started them, prterun, or srun --mpi=pmix."""
    environment = variables() if environment is None else environment
    return "PMIX_RANK" in environment and not {"PMI_FD", "PMI_PORT"} & environment.keys()


# What a rank must get from here on a machine that mpirun reaches through ssh, where a login shell sets its own.
_HANDED_ON = ("TFDIST_", "TF_", "XLA_", "OMP_", "PYTHON")
_HANDED_ON_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "DDL_OPTIONS")
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
