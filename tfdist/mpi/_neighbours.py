"""Neighbours: whether the ranks of a machine may read each other's memory, and a setting of MPI if they may not.

Containers often forbid ``process_vm_readv`` (the seccomp filters of Docker and Kubernetes). So do user and process
namespaces, Yama, and programs that may not be dumped. MPICH (5.0.2) does not check this: large messages within a
machine end the process in ``MPI_Test``. It reads its control variable for each message, and MPI's tools interface can
set the variable (MPI 4.1, chapter 15). So the ranks test the access when MPI runs, with small messages.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.system import mapped_files
from tfdist.processes.process_memory import ProcessMemory, address, allow_siblings

_SECRET_NUMBERS = 2
_READS_MEMORY = b"MPIR_CVAR_CH4_CMA_ENABLE"
_SUCCESS = 0


def unreadable(everyone: Any, machine: Any) -> str:
    """Return why some rank cannot read the memory of another rank of its machine; empty if all can.

    Collective: all ranks.

    Args:
      everyone: communicator of all ranks.
      machine: communicator of this machine's ranks.
    """
    allow_siblings()
    # A process in another container may have the same ID: the memory must contain what its rank has written.
    secret = np.frombuffer(os.urandom(8 * _SECRET_NUMBERS), np.int64)
    own = np.array([os.getpid(), address(secret), *secret], np.int64)
    told = np.empty((machine.size, own.size), np.int64)
    machine.Allgather(own, told)
    failed = np.array([_failure(told, machine.rank)], np.int64)
    everyone.Allreduce(MPI.IN_PLACE, failed, MPI.MAX)
    machine.Barrier()  # until here the secrets must exist
    if failed[0] == errno.ENOSYS:
        return "this system has no process_vm_readv"
    return f"process_vm_readv: {os.strerror(failed[0])}" if failed[0] else ""


def _failure(told: np.ndarray, index: int) -> int:
    """Return the system's error number; 0 if there is no error."""
    try:
        peers = ProcessMemory(told[:, 0].tolist(), [], index)
        for other, (_, where, *secret) in enumerate(told.tolist()):
            found = np.zeros(_SECRET_NUMBERS, np.int64)
            vectors = np.array([[where, found.nbytes]]), np.array([[address(found), found.nbytes]])
            peers.read(other, *vectors, size_bytes=found.nbytes)
            if found.tolist() != secret:
                return errno.ESRCH  # the ID belongs to another process here
    except OSError as error:
        return error.errno or errno.ENOSYS
    return 0


def disable_neighbour_reads() -> None:
    """Have MPI send through shared memory instead of reading another rank's memory, in libraries that can."""
    # (Before the first large message. In libraries without this variable the look-up of its index fails.)
    files = mapped_files(r"/\S*/libmpi\w*\.so\S*")
    if not files:
        return
    library = ctypes.CDLL(files[0])
    provided, index, count, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int(0)
    handle = ctypes.c_void_p()
    if library.MPI_T_init_thread(MPI.THREAD_MULTIPLE, ctypes.byref(provided)) != _SUCCESS:
        return
    if library.MPI_T_cvar_get_index(_READS_MEMORY, ctypes.byref(index)) == _SUCCESS:
        library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
        library.MPI_T_cvar_write(handle, ctypes.byref(value))
