"""MPI's start: settings of libraries that are needed before it, because their defaults would fail.

MPICH passes each rank's address to the others through the launcher's PMI. With UCX an address is 4 KiB of memory, whose
end is uninitialized. It is sent in lines of up to 1,076 characters. Slurm's pmi2 reads 1,024 of them, and takes the
rest for another line ("value not properly terminated in client request"). Depending on that memory, addresses arrive
damaged, and MPI ends or hangs as it starts, or later. Seen with MPICH 5.0.2 and Slurm 22.05. An address of ofi fits.

Open MPI's collectives in two levels ("han") make their communicators at the first call. With two hosts of two ranks
that hangs inside ``MPI_Win_create``: all ranks wait in ``ompi_comm_nextcid``. Seen with Open MPI 5.0.11.

At SIGHUP UCX prints its own log, and the rank continues. The rank should end, as it does at SIGTERM.

MPICH and UCX allocate memory in /dev/shm as they start. This file system grants memory that it does not have. If it is
too small, as in containers, the rank ends with SIGBUS. MPICH can use less memory, and UCX can do without.
"""

from __future__ import annotations

import os
import re
import sys
import time

from tfdist.core import environment
from tfdist.core.environment import Launch
from tfdist.core.log import announce, set_log_prefix
from tfdist.core.system import SHARED_MEMORY
from tfdist.transport.errors import SetupError

NETWORK_MODULE = "MPIR_CVAR_CH4_NETMOD"
TWO_LEVELS = "OMPI_MCA_coll_han_priority"
UCX_DEBUGS = "UCX_DEBUG_SIGNO"
UCX_WAYS = "UCX_TLS"
CELLS, CELL_BYTES = "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS", "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE"
# Memory of MPICH 5.0.2 in KiB per rank: MPICH and UCX by default; MPICH by default; MPICH with (cells, bytes per cell).
_USUAL_KB, _USUAL_OF_MPI_KB = 12_000, 1040
_SMALLER = ((140, 16, 4096), (44, 4, 4096), (28, 2, 4096))
_SPARE_SHARE = 0.95
_FIRST_RANK_SECONDS = 5.0
_SMALL = (
    "{} has {:.2f} MiB: MPI gets a smaller part of it, and its messages within a machine take longer (in a container: "
    "docker run --shm-size=1g)"
)
_TOO_SMALL = (
    "{} has {:.2f} MiB free, and MPI needs {:.2f} MiB of it for {} ranks. Enlarge it (in a container: docker run "
    "--shm-size=1g; else mount -o remount,size=1g {}), or remove files that other jobs have left there"
)
_NO_PMIX = (
    "Open MPI's mpirun or another launcher with PMIx only has started this program. The library that mpi4py uses ({}) "
    "does not support PMIx: they belong to different MPIs. Start with tfdist-run, or with that library's own mpirun"
)
_WARNING = (
    "this MPICH ({}) has no network module but UCX, and Slurm's pmi2 cuts off UCX's addresses. If MPI does not start, "
    "use tfdist-run or mpirun inside the allocation, or an MPICH with ofi"
)


def start(launched: Launch) -> None:
    """Start MPI as the import of mpi4py would, or leave the start to that import.

    Args:
      launched: the launcher's numbers of this rank.
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
    # Only the library can tell what it supports. It can be asked before MPI starts.
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
    """Check that this library can use PMIx.

    Raises:
      SetupError: it is an MPICH without PMIx, which would end the process at the start.
    """
    if device_of(version) and "pmix" not in version.lower():
        raise SetupError(_NO_PMIX.format(version.splitlines()[0].strip("\0 ")))


def _choose_module(device: str, launched: Launch) -> None:
    module = module_for_slurm(device)
    if module:
        environment.set_default(NETWORK_MODULE, module)
    elif module is None:
        set_log_prefix(launched.rank or 0)
        announce(_WARNING.format(device))


def _shared_memory() -> tuple[int, int]:
    """Return the size and the free space of /dev/shm in bytes; zeros if it does not exist."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def fit_into_shared_memory(launched: Launch, size_bytes: int, free_bytes: int) -> None:
    """Have MPICH and UCX take no more of /dev/shm than there is.

    All ranks of a machine choose the same, in any order, because the choice depends on the size of the file system.

    Raises:
      SetupError: there is too little space even for the smallest choice.
    """
    ranks = launched.local_size or launched.size or 1
    if not size_bytes or environment.variables().get(CELLS):
        return
    room = size_bytes * _SPARE_SHARE / 1024
    needed = _USUAL_OF_MPI_KB * ranks
    if room < _USUAL_KB * ranks:
        environment.set_default(UCX_WAYS, "^sm")
        if room < 2 * needed:  # the rest is for tfdist
            least, cells, cell_bytes = next((s for s in _SMALLER if 2 * s[0] * ranks <= room), _SMALLER[-1])
            needed = least * ranks
            environment.set_default(CELLS, str(cells))
            environment.set_default(CELL_BYTES, str(cell_bytes))
            set_log_prefix(launched.rank or 0)
            announce(_SMALL.format(SHARED_MEMORY, size_bytes / 2**20))
    if free_bytes * _SPARE_SHARE / 1024 >= needed:
        return
    if not launched.local_rank:
        raise SetupError(_TOO_SMALL.format(SHARED_MEMORY, free_bytes / 2**20, needed / 1024, ranks, SHARED_MEMORY))
    # MPI's start on the first rank may have taken this space. If not, that rank ends the job before this one starts.
    time.sleep(_FIRST_RANK_SECONDS)


def device_of(version: str) -> str:
    """Return MPICH's device from its version text, ``ch4:ucx ofi`` for example; empty for other libraries."""
    match = re.search(r"^MPICH Device:\s*(\S.*?)\s*$", version, re.MULTILINE)
    return match.group(1) if match else ""


def module_for_slurm(device: str) -> str | None:
    """Return the network module to set under Slurm's pmi2: empty if the default works, None if no module works.

    Args:
      device: MPICH's device with its modules; the first module is the default.
    """
    kind, _, names = device.partition(":")
    modules = re.split(r"[ ,]+", names)
    if kind != "ch4" or modules[0] != "ucx":
        return ""
    return "ofi" if "ofi" in modules else None
