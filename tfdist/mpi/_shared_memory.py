"""Shared memory of a node's ranks, in files without a name in /dev/shm: one for each channel that needs it."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.log import log
from tfdist.core.system import SHARED_MEMORY, mapped_files, memory_folder, reserve
from tfdist.transport.stall_detection import StallDetector

# Name of a rank's shared memory in MPICH, which stays behind unless the rank reaches MPI_Finalize.
_NAMED = rf"{SHARED_MEMORY}/mpich_shm_\S+"
_SPARE_SHARE = 0.9  # usable share of the free space: other programs need some, too


def shared_memory(ranks: Any, size_bytes: int, folders: Sequence[str]) -> tuple[np.ndarray | None, str]:
    """Return shared memory of some ranks of one machine: a file in a memory file system, already unlinked.

    All of it is allocated: a process ends when it touches memory that the file system granted but does not have.

    Collective: these ranks.

    Args:
      ranks: communicator of these ranks.
      size_bytes: size of the memory of each rank.
      folders: folders for the file, in the order in which they are tried.

    Returns:
      uint8 [ranks, size_bytes], zeros, and an empty text; or None and the reason.
    """
    reason = ""
    for folder in folders:
        path: str = ranks.bcast(os.path.join(folder, f"tfdist-{secrets.token_hex(8)}"))
        memory, reason = _mapped(ranks, path, size_bytes)
        if memory is not None:
            return np.frombuffer(memory, np.uint8).reshape(ranks.size, size_bytes), ""
    return None, reason


def _mapped(ranks: Any, path: str, size_bytes: int) -> tuple[mmap.mmap | None, str]:
    memory = None
    reason = _attempt(lambda: os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))) if ranks.rank == 0 else ""
    if not ranks.bcast(reason):
        # Each rank allocates its own part, so that the part is in the memory of the rank's processor.
        reason = _attempt(lambda: _reserve(path, ranks.rank * size_bytes, size_bytes))
    reason = _first(ranks, reason)
    if not reason:
        memory, reason = _map(path, ranks.size * size_bytes)
        reason = _first(ranks, reason)
    if ranks.rank == 0:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return (None, reason) if reason else (memory, "")


def _first(ranks: Any, reason: str) -> str:
    return next((r for r in ranks.allgather(reason) if r), "")


def _reserve(path: str, start: int, size_bytes: int) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        reserve(file, start, size_bytes)
    finally:
        os.close(file)


def _map(path: str, size_bytes: int) -> tuple[mmap.mmap | None, str]:
    try:
        file = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(file, size_bytes), ""
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        return None, f"{os.path.dirname(path)}: {error}"


def _attempt(action: Any) -> str:
    try:
        action()
    except OSError as error:
        return f"{error.filename or 'shared memory'}: {error.strerror}"
    return ""


class SharedMemory:
    """Shared memory for the channels of a node's ranks.

    Args:
      everyone: communicator of all ranks, used only for common decisions.
      node: communicator of this node's ranks.
      ranks_on_machine: number of ranks that use the same file system.
      detector: stall detector of this rank.

    Attributes:
      index: number of this rank on the node.
      pids: process IDs of the node's ranks.
      fence: function that executes a memory barrier.
    """

    def __init__(self, everyone: Any, node: Any, ranks_on_machine: int, detector: StallDetector) -> None:
        self._everyone, self._node = everyone, node
        self._ranks_on_machine = ranks_on_machine
        self._detector = detector
        self._told = False
        self.index: int = node.rank
        self.pids: list[int] = node.allgather(os.getpid())
        # A window of its own, whose ``Sync`` is a memory barrier: Python has none.
        window = MPI.Win.Allocate_shared(8, 1, MPI.INFO_NULL, MPI.COMM_SELF)
        window.Lock_all()
        self.fence: Callable[[], None] = window.Sync

    def take(self, size_bytes: int) -> list[np.ndarray] | None:
        """Return memory of each of the node's ranks, in their order; None if any rank of the job cannot get it.

        Collective: all ranks.

        Returns:
          uint8 [size_bytes or a few more] for each rank, zeros.
        """
        pages = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE  # each rank's is in the memory of its processor
        with self._detector.inside("the making of shared memory"):
            memory, reason = self._allocate(pages)
        if memory is None and self._everyone.rank == 0 and not self._told:
            self._told = True
            log(f"{reason}: ranks exchange without this shared memory, more slowly")
        return memory

    def _allocate(self, size_bytes: int) -> tuple[list[np.ndarray] | None, str]:
        reason, memory = _first(self._everyone, self._obstacle(size_bytes * self._ranks_on_machine)), None
        if not reason:
            memory, reason = shared_memory(self._node, size_bytes, [memory_folder()])
            reason = _first(self._everyone, reason)
        if reason or memory is None:
            return None, reason
        memory[self._node.rank][:] = 0  # touched now, in its rank's processor's memory, not in the first step
        self.fence()
        self._node.Barrier()
        return list(memory), ""

    def _obstacle(self, size_bytes: int) -> str:
        place = memory_folder()
        try:
            status = os.statvfs(place)
        except OSError as error:
            return f"{place}: {error.strerror}"
        free = status.f_bavail * status.f_frsize
        if size_bytes <= free * _SPARE_SHARE:
            return ""
        return (
            f"{place} has {free / 2**20:.1f} MiB free, a tenth of it for other programs, but "
            f"{size_bytes / 2**20:.1f} MiB are needed (in a container: docker run --shm-size=1g)"
        )


def take_names_off() -> None:
    """Unlink MPI's shared memory, which all ranks have mapped: so it is freed with its processes, however they end."""
    for name in set(mapped_files(_NAMED)):
        with contextlib.suppress(OSError):
            os.unlink(name)
