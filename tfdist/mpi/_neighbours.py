"""Neighbours: has MPICH send through shared memory where its ranks may not read each other's memory.

Containers often forbid ``process_vm_readv`` (the seccomp filters of Docker and Kubernetes). So do user and process
namespaces, Yama, and programs that may not be dumped. MPICH (5.0.2) does not check this: large messages within a
machine end the process in ``MPI_Test``. It reads its control variable for each message, and MPI's tools interface can
set the variable (MPI 4.1, chapter 15). Messages without reading take four times as long, so it is not set always.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.system import mapped_files

_READS_MEMORY = b"MPIR_CVAR_CH4_CMA_ENABLE"
_SET_PTRACER = 0x59616D61


def avoid_forbidden_reads(everyone: Any, machine: Any) -> None:
    """Test the access, and set the variable on all ranks if any rank cannot read. Collective: all ranks.

    Args:
      everyone: communicator of all ranks.
      machine: communicator of this machine's ranks.
    """
    if not MPI.Get_library_version().startswith("MPICH"):
        return
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # Yama's default allows only ancestors to read: allow the launcher's all
        library.prctl(_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
    # Each rank reads the next one. A process in another container may have the same ID: so the value is a secret.
    told = np.array([os.getpid(), 0, *np.frombuffer(os.urandom(16), np.int64)], np.int64)
    told[1] = told[2:].ctypes.data
    following, previous = (machine.rank + 1) % machine.size, (machine.rank - 1) % machine.size
    theirs = np.empty_like(told)
    machine.Sendrecv(told, previous, recvbuf=theirs, source=following)
    failed = np.array([not _readable(library, theirs)], np.int64)
    everyone.Allreduce(MPI.IN_PLACE, failed, MPI.MAX)  # (until here the secrets exist)
    files = mapped_files(r"/\S*/libmpi\w*\.so\S*") if failed[0] else []
    if files:
        _set_zero(ctypes.CDLL(files[0]), _READS_MEMORY)


def _readable(library: ctypes.CDLL, told: np.ndarray) -> bool:
    pid, address, *secret = told.tolist()
    found = np.zeros(len(secret), np.int64)
    ours, theirs = np.array([found.ctypes.data, found.nbytes]), np.array([address, found.nbytes])  # struct iovec
    number = ctypes.c_ulong
    with contextlib.suppress(AttributeError):  # not on all systems
        library.process_vm_readv(
            *(int(pid), ctypes.c_void_p(ours.ctypes.data), number(1)),
            *(ctypes.c_void_p(theirs.ctypes.data), number(1), number(0)),
        )
    return found.tolist() == secret


def _set_zero(library: ctypes.CDLL, name: bytes) -> None:
    """Set a control variable to 0 before the first large message; do nothing in libraries that do not have it."""
    provided, index, count, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int(0)
    handle = ctypes.c_void_p()
    if library.MPI_T_init_thread(MPI.THREAD_MULTIPLE, ctypes.byref(provided)) != MPI.SUCCESS:
        return
    if library.MPI_T_cvar_get_index(name, ctypes.byref(index)) == MPI.SUCCESS:
        library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
        library.MPI_T_cvar_write(handle, ctypes.byref(value))
