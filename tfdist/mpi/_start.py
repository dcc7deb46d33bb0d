"""MPI's start: what libraries must be told before it, where their defaults would fail.

MPICH hands each rank's address to the others through the launcher's PMI: with UCX 4 KiB of memory, which end in what
was there before, in pieces whose lines have up to 1,076 characters. Slurm's pmi2 reads 1,024 of them, and takes the
rest for another line ("value not properly terminated in client request"): depending on that memory, addresses arrive
damaged, and MPI ends or hangs as it starts, or later. Seen with MPICH 5.0.2 and Slurm 22.05. An address of ofi fits.

Open MPI's collectives in two levels ("han") make their communicators at the first call. With two hosts of two ranks
that hangs inside ``MPI_Win_create``: all ranks wait in ``ompi_comm_nextcid``. Seen with Open MPI 5.0.11.

UCX prints its own log at SIGHUP, and the rank goes on: it is to end, as it does by SIGTERM.

MPICH and UCX take memory in /dev/shm as they start, a file system that promises what it does not have: where it is
smaller than that, as in containers, the rank ends with SIGBUS. MPICH can do with less, and UCX without.
"""

from __future__ import annotations

import os
import re
import sys

from tfdist.core import environment
from tfdist.core.environment import Launch
from tfdist.core.log import announce, speak_as
from tfdist.transport.interfaces import SetupError

NETWORK_MODULE = "MPIR_CVAR_CH4_NETMOD"
TWO_LEVELS = "OMPI_MCA_coll_han_priority"
UCX_DEBUGS = "UCX_DEBUG_SIGNO"
UCX_WAYS = "UCX_TLS"
CELLS, CELL_BYTES = "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS", "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE"
SHARED_MEMORY = "/dev/shm"
# Of MPICH 5.0.2, KiB a rank: what it and UCX take by themselves; what it takes with so many cells of so many bytes.
_USUAL_KB, _USUAL_OF_MPI_KB = 12_000, 1040
_SMALLER = ((140, 16, 4096), (44, 4, 4096), (28, 2, 4096))
_SPARE_SHARE = 0.95
_SMALL = (
    "{} has {:.2f} MiB: MPI's own part of it is made smaller, and its messages within a machine take longer (in a "
    "container: docker run --shm-size=1g)"
)
_TOO_SMALL = (
    "{} has {:.2f} MiB free, and MPI needs {:.2f} MiB of it for {} ranks: give it more room (in a container: docker "
    "run --shm-size=1g; else mount -o remount,size=1g {}), or remove what other jobs have left there"
)
_NO_PMIX = (
    "Open MPI's mpirun has started this, or another launcher that knows PMIx alone, which the library that mpi4py uses "
    "({}) does not: they belong to different MPIs. Start with tfdist-run, or with that library's own mpirun"
)
_WARNING = (
    "this MPICH knows no way over the network but UCX, whose addresses Slurm's pmi2 cuts off (MPICH's {} lists its "
    "modules): if MPI does not start, start with tfdist-run or mpirun inside the allocation, or take an MPICH with ofi"
)


def start(launched: Launch) -> None:
    """Start MPI as the import of mpi4py would, or let that import start it.

    Args:
      launched: this rank, as the launcher has told it.
    """
    environment.set_default(TWO_LEVELS, "-1")  # never; other libraries do not read it
    environment.set_default(UCX_DEBUGS, "0")  # at no signal
    fit_into_shared_memory(launched, *_shared_memory())
    by_pmix = environment.started_by_pmix()
    if not (by_pmix or environment.started_by_slurm_pmi()) or "mpi4py.MPI" in sys.modules:
        return
    import mpi4py

    rc = mpi4py.rc
    if not rc.initialize or environment.variables().get(NETWORK_MODULE):
        return
    # What it can do is known to the library alone, which can be asked before it starts.
    rc.initialize, rc.finalize = False, rc.finalize is not False
    from mpi4py import MPI

    version = MPI.Get_library_version()
    if by_pmix:
        check_pmix(version)
    else:
        _choose_module(device_of(version), launched)
    rc.initialize = True
    MPI.Init_thread(getattr(MPI, f"THREAD_{rc.thread_level.upper()}") if rc.threads else MPI.THREAD_SINGLE)


def check_pmix(version: str) -> None:
    """Whether this library can meet through PMIx.

    Raises:
      SetupError: it is an MPICH without it, which would end the process as it starts.
    """
    if device_of(version) and "pmix" not in version.lower():
        raise SetupError(_NO_PMIX.format(version.splitlines()[0].strip("\0 ")))


def _choose_module(device: str, launched: Launch) -> None:
    module = module_for_slurm(device)
    if module:
        environment.set_default(NETWORK_MODULE, module)
    elif module is None:
        speak_as(launched.rank or 0)
        announce(_WARNING.format(device))


def _shared_memory() -> tuple[int, int]:
    """The size of that file system and what is free, in bytes; zeros if there is none."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def fit_into_shared_memory(launched: Launch, size_bytes: int, free_bytes: int) -> None:
    """Have MPICH and UCX take no more of /dev/shm than there is.

    All ranks of a machine come to the same, whoever is first: it follows from the size of the file system.

    Raises:
      SetupError: there is no room for as little as they need.
    """
    ranks = launched.local_size or launched.size or 1
    if not size_bytes or environment.variables().get(CELLS):
        return
    room = size_bytes * _SPARE_SHARE / 1024
    needed = _USUAL_OF_MPI_KB * ranks
    if room < _USUAL_KB * ranks:
        environment.set_default(UCX_WAYS, "^sm")
        if room < 2 * needed:  # or tfdist has none
            least, cells, cell_bytes = next((s for s in _SMALLER if 2 * s[0] * ranks <= room), _SMALLER[-1])
            needed = least * ranks
            environment.set_default(CELLS, str(cells))
            environment.set_default(CELL_BYTES, str(cell_bytes))
            speak_as(launched.rank or 0)
            announce(_SMALL.format(SHARED_MEMORY, size_bytes / 2**20))
    # What is free the first looks at, which makes it less.
    if not launched.local_rank and free_bytes * _SPARE_SHARE / 1024 < needed:
        raise SetupError(_TOO_SMALL.format(SHARED_MEMORY, free_bytes / 2**20, needed / 1024, ranks, SHARED_MEMORY))


def device_of(version: str) -> str:
    """MPICH's device by what it says of itself, ``ch4:ucx ofi`` for example; empty for other libraries."""
    match = re.search(r"^MPICH Device:\s*(\S.*?)\s*$", version, re.MULTILINE)
    return match.group(1) if match else ""


def module_for_slurm(device: str) -> str | None:
    """The module to ask for under Slurm's pmi2: empty if the default will do, None if there is none that will.

    Args:
      device: with its modules, of which the first is the default.
    """
    kind, _, names = device.partition(":")
    modules = re.split(r"[ ,]+", names)
    if kind != "ch4" or modules[0] != "ucx":
        return ""
    return "ofi" if "ofi" in modules else None
