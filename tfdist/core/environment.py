"""Environment variables of this process: the launcher's variables, and defaults for libraries.

The only module that reads or writes ``os.environ``.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Mapping


def variables() -> Mapping[str, str]:
    """Return all environment variables, with their present values."""
    return os.environ


@dataclasses.dataclass(frozen=True)
class Launch:
    """Numbers that the launcher put into this process's environment.

    Attributes:
      size: number of processes started together; None if the launcher does not set it.
      rank: rank of this process among them; None if the launcher does not set it.
      local_rank: number of this process on its machine; the rank if the launcher does not set it.
      local_size: number of processes on this machine; None if the launcher does not set it.
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
    """Return the launcher's numbers; None without a launcher (``python script.py``), and in a rank's child."""
    environment = variables() if environment is None else environment
    if parent_rank(environment) is not None:
        return None
    for size, rank, local_rank, local_size in _LAUNCHERS:
        if size in environment and rank in environment:
            number, here = int(environment[rank]), environment.get(local_size)
            local = int(environment.get(local_rank, number))
            return Launch(int(environment[size]), number, local, None if here is None else int(here))
    if "PMIX_RANK" in environment:  # a PMIx launcher (prterun, srun --mpi=pmix), which gives the size through MPI only
        number = int(environment["PMIX_RANK"])
        return Launch(None, number, number)
    return None


# Variable by which children recognize that their parent is a rank: they inherit the launcher's variables, too. (The
# name does not begin with TFDIST_, because it is no setting.)
_MARK = "_TFDIST_RANK"
# Variables that identify a rank of a launcher. Others with similar names are left out: MPI sets some as it starts.
_IDENTITY = (
    *("PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_FD", "PMI_PORT", "PMI_ID", "PMI_JOBID", "PMI_RANK"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
)


def mark(rank: int) -> None:
    """Mark this process as a rank, before it starts MPI. Its children inherit the mark, so they find their parent."""
    os.environ[_MARK] = f"{os.getpid()} {rank} {_launcher(os.environ)}"


def parent_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """Return the rank whose child or grandchild this process is; None if there is none.

    If such a child starts a launcher, the launcher's ranks do not count as children.
    """
    found = _marked(variables() if environment is None else environment)
    return None if found is None or found[0] == os.getpid() else found[1]


def begun_before(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether this process was a rank already, before ``os.exec`` replaced its program by this one."""
    found = _marked(variables() if environment is None else environment)
    return found is not None and found[0] == os.getpid()


def _marked(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return process ID and number of the rank that has marked this environment; None without a valid mark."""
    if _MARK not in environment:
        return None
    pid, rank, launcher = environment[_MARK].split(" ", 2)
    # The mark is invalid if another launcher has started this process. If Hydra's connection is closed here, the
    # launcher's text is empty: then the variables were only inherited, and the mark is valid.
    anew = _launcher(environment) not in (launcher, "") and os.getppid() != int(pid)
    return None if anew else (int(pid), int(rank))


def _launcher(environment: Mapping[str, str]) -> str:
    """Return a text that identifies a launcher's rank; empty if the launcher's socket is not open in this process."""
    said = " ".join(f"{name}={environment[name]}" for name in _IDENTITY if name in environment)
    if "PMI_FD" not in environment:
        return said
    # Hydra's jobs have equal numbers, but different sockets. Most children do not inherit the socket.
    descriptor = launcher_connection(environment)
    return "" if descriptor is None else f"{said} socket={os.fstat(descriptor).st_ino}"


def launcher_connection(environment: Mapping[str, str] | None = None) -> int | None:
    """Return the file descriptor of the open socket to the launcher (Hydra, Slurm's PMI); None without one."""
    environment = variables() if environment is None else environment
    try:
        descriptor = int(environment["PMI_FD"])
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    except (KeyError, ValueError, OSError):
        return None


def started_by_slurm_pmi(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether the ranks meet through Slurm's own PMI-1 or PMI-2 (srun --mpi=pmi2)."""
    environment = variables() if environment is None else environment
    # An mpirun that was started in Slurm's job has its own PMI, and sets the local rank.
    return {"SLURM_STEP_ID", "PMI_FD", "PMI_JOBID"} <= environment.keys() and "MPI_LOCALRANKID" not in environment


def started_by_pmix(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether ranks can meet only by PMIx: Open MPI's mpirun, prterun or srun --mpi=pmix has started them."""
    environment = variables() if environment is None else environment
    return "PMIX_RANK" in environment and not {"PMI_FD", "PMI_PORT"} & environment.keys()


# Variables for ranks on a machine that mpirun reaches through ssh, where a login shell sets other values.
_HANDED_ON = ("TFDIST_", "TF_", "XLA_", "OMP_", "PYTHON")
_HANDED_ON_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "DDL_OPTIONS")
_BATCH_SYSTEMS = {"SLURM_JOB_ID": "Slurm", "PBS_NODEFILE": "PBS", "LSB_JOBID": "LSF", "PE_HOSTFILE": "Grid Engine"}


def exported_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of this environment that ranks on other machines need, by name."""
    environment = variables() if environment is None else environment
    return {
        name: environment[name]
        for name in sorted(environment)
        if name.startswith(_HANDED_ON) or name in _HANDED_ON_NAMES
    }


def rank_defaults(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables that a launcher sets for the ranks, without those that the user has set."""
    environment = variables() if environment is None else environment
    # From this size on (256 KiB) glibc copies past the caches, which makes the copies of gradients faster. The C
    # library reads it before main: an import cannot set it. Elsewhere than on x86 it is ignored.
    defaults = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
    return {name: value for name, value in defaults.items() if name not in environment}


def batch_system(environment: Mapping[str, str] | None = None) -> str:
    """Return the batch system in whose allocation this process runs; empty if there is none."""
    environment = variables() if environment is None else environment
    return next((system for variable, system in _BATCH_SYSTEMS.items() if variable in environment), "")


# Variables in which Kubernetes' MPI operator (pkg/controller/mpi_job_controller.go), or a user, names the hostfile.
_HOSTFILES = ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE", "OMPI_MCA_orte_default_hostfile")


def hostfile(environment: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the variable that names a hostfile for the launcher, and the file; empty if there is none."""
    environment = variables() if environment is None else environment
    return next(((name, environment[name]) for name in _HOSTFILES if environment.get(name)), ("", ""))


def in_launcher_pod(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether this is the launcher of Kubernetes' MPI operator."""
    environment = variables() if environment is None else environment
    return environment.get("K_MPI_JOB_ROLE") == "launcher"


def set_default(variable: str, value: str) -> bool:
    """Set a variable for this process's libraries unless the user has set it. Return whether it was set here."""
    if variable in os.environ:
        return False
    os.environ[variable] = value
    return True


def overwrite(variable: str, choose: Callable[[str | None], str | None]) -> None:
    """Set a variable to the result of ``choose``, which gets its value; if the result is None, the value stays."""
    chosen = choose(os.environ.get(variable))
    if chosen is not None:
        os.environ[variable] = chosen
