"""MPI's start: what libraries must be told before it, where their defaults would fail.

MPICH hands each rank's address to the others through the launcher's PMI: with UCX 4 KiB of memory, which end in what
was there before, in pieces whose lines have up to 1,076 characters. Slurm's pmi2 reads 1,024 of them, and takes the
rest for another line ("value not properly terminated in client request"): depending on that memory, addresses arrive
damaged, and MPI ends or hangs as it starts, or later. Seen with MPICH 5.0.2 and Slurm 22.05. An address of ofi fits.

Open MPI's collectives in two levels ("han") make their communicators at the first call. With two hosts of two ranks
that hangs inside ``MPI_Win_create``: all ranks wait in ``ompi_comm_nextcid``. Seen with Open MPI 5.0.11.
"""

from __future__ import annotations

import re
import sys

from tfdist.core import environment
from tfdist.core.environment import Launch
from tfdist.core.log import announce, speak_as

NETWORK_MODULE = "MPIR_CVAR_CH4_NETMOD"
TWO_LEVELS = "OMPI_MCA_coll_han_priority"
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
    if not environment.started_by_slurm_pmi() or "mpi4py.MPI" in sys.modules:
        return
    import mpi4py

    rc = mpi4py.rc
    if not rc.initialize or environment.variables().get(NETWORK_MODULE):
        return
    # Which modules there are is known to the library alone, which can be asked before it starts.
    rc.initialize, rc.finalize = False, rc.finalize is not False
    from mpi4py import MPI

    device = device_of(MPI.Get_library_version())
    module = module_for_slurm(device)
    if module:
        environment.set_default(NETWORK_MODULE, module)
    elif module is None:
        speak_as(launched.rank or 0)
        announce(_WARNING.format(device))
    rc.initialize = True
    MPI.Init_thread(getattr(MPI, f"THREAD_{rc.thread_level.upper()}") if rc.threads else MPI.THREAD_SINGLE)


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
