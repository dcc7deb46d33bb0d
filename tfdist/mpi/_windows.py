"""Windows: shared memory of a node's ranks, which is allocated when channels need it."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.log import log
from tfdist.core.system import memory_folder, reserve
from tfdist.mpi._shared_memory import Segments
from tfdist.transport.stall_detection import StallDetector

# A window is a file, which small channels share. If there is no space for the first size, the next size is tried.
_WINDOW_BYTES = 16 << 20, 4 << 20, 1 << 20
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


class Windows:
    """Windows of shared memory of a node's ranks, which are allocated when channels need them.

    Args:
      everyone: communicator of all ranks, used only for common decisions.
      node: communicator of this node's ranks.
      ranks_on_machine: number of ranks that use the same file system.
      detector: stall detector of this rank.
      pids: process IDs of the node's ranks.
    """

    def __init__(
        self, everyone: Any, node: Any, ranks_on_machine: int, detector: StallDetector, pids: Sequence[int]
    ) -> None:
        self._everyone = everyone
        self._node = node
        self._ranks_on_machine = ranks_on_machine
        self._detector = detector
        self._segments: Segments | None = None
        self._told = False
        # A window of its own, whose ``Sync`` is a memory barrier: Python has none.
        self._fence = MPI.Win.Allocate_shared(8, 1, MPI.INFO_NULL, MPI.COMM_SELF)
        self._fence.Lock_all()
        self.pids = pids

    def segments(self, size_bytes: int) -> Segments | None:
        """Return segments with so many bytes left; None if any rank cannot get them. Collective: all ranks."""
        if self._segments is None or self._segments.free_bytes < size_bytes:
            reason = ""
            with self._detector.inside("the making of shared memory"):
                for size in dict.fromkeys(max(size_bytes, window) for window in (*_WINDOW_BYTES, size_bytes)):
                    granted, reason = self._allocate(size)
                    if granted is not None:
                        self._segments = granted
                        return granted
            if self._everyone.rank == 0 and not self._told:
                self._told = True
                log(f"{reason}: ranks exchange without this shared memory, more slowly")
            return None
        return self._segments

    def _allocate(self, size_bytes: int) -> tuple[Segments | None, str]:
        reason, memory = _first(self._everyone, self._obstacle(size_bytes * self._ranks_on_machine)), None
        if not reason:
            memory, reason = shared_memory(self._node, size_bytes, [memory_folder()])
            reason = _first(self._everyone, reason)
        if reason or memory is None:
            return None, reason
        memory[self._node.rank][:] = 0  # touched now, in its rank's processor's memory, not in the first step
        self._fence.Sync()
        self._node.Barrier()
        return Segments(list(memory), self._node.rank, self._fence.Sync), ""

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
