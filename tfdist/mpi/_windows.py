"""MPI windows: memory that the ranks of a node share, allocated as channels ask for it."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.log import log
from tfdist.mpi._shared_memory import Segments
from tfdist.transport.process_memory import ProcessMemory, address, allow_siblings
from tfdist.transport.stall_detection import StallDetector

_SHARED_MEMORY = "/dev/shm"
# Windows are costly for MPI (communicators, files): small channels share one.
_WINDOW_BYTES = 16 << 20
_SPARE_SHARE = 0.9  # of what is free: others need some too


class Windows:
    """Windows of memory that the ranks of a node share, allocated as channels ask for it.

    Args:
      everyone: all ranks; only to decide together.
      node: the ranks of this node.
      ranks_on_machine: that take from the same file system.
      detector: this rank's knowledge of the others.
    """

    def __init__(self, everyone: Any, node: Any, ranks_on_machine: int, detector: StallDetector) -> None:
        self._everyone = everyone
        self._node = node
        self._ranks_on_machine = ranks_on_machine
        self._detector = detector
        self._windows: list[Any] = []
        self._segments: Segments | None = None
        self._told = False
        self.pids: Sequence[int] = node.allgather(os.getpid())

    @functools.cached_property
    def unreadable(self) -> str:
        """Why some rank cannot read the memory of another of its node; empty if all can. Collective: all ranks."""
        with self._detector.inside("the reading of other ranks' memory"):
            return self._find_unreadable()

    def _find_unreadable(self) -> str:
        allow_siblings()
        # Another container's process may have the same number: what is read must be what its rank has written.
        secret = np.frombuffer(os.urandom(64), np.uint8)
        written = self._node.allgather((address(secret), secret.tobytes()))
        reason = ""
        try:
            peers = ProcessMemory(self.pids, [], self._node.rank)
            for index, (where, expected) in enumerate(written):
                found = np.zeros(64, np.uint8)
                vectors = np.array([[where, 64]]), np.array([[address(found), 64]])
                peers.read(index, *vectors, size_bytes=64)
                if found.tobytes() != expected:
                    reason = f"process {self.pids[index]} is another one than the rank's"
        except OSError as error:
            reason = str(error)
        return self._first(reason)

    def segments(self, size_bytes: int) -> Segments | None:
        """Segments with that much left; None if any rank cannot have them. Collective: all ranks."""
        if self._segments is None or self._segments.free_bytes < size_bytes:
            sizes = dict.fromkeys((max(size_bytes, _WINDOW_BYTES), size_bytes))
            with self._detector.inside("the making of shared memory"):
                granted = next((g for g in map(self._allocate, sizes) if g is not None), None)
            if granted is None:
                return None
            self._segments = granted
        return self._segments

    def _allocate(self, size_bytes: int) -> Segments | None:
        reason = self._obstacle(size_bytes * self._ranks_on_machine)
        window = None
        if not self._first(reason):
            try:
                window = MPI.Win.Allocate_shared(size_bytes, 1, MPI.INFO_NULL, self._node)
            except MPI.Exception as error:
                reason = f"MPI refuses shared memory ({error})"
        reason = self._first(reason)
        if reason or window is None:
            if self._everyone.rank == 0 and not self._told:
                log(f"{reason}: what would need it goes another way, more slowly")
            self._told = True
            return None
        window.Lock_all()
        self._windows.append(window)
        memory = [np.frombuffer(window.Shared_query(r)[0], np.uint8)[:size_bytes] for r in range(self._node.size)]
        memory[self._node.rank][:] = 0  # all of it, now: what is not there ends the process at the first touch
        window.Sync()
        self._node.Barrier()
        return Segments(memory, self._node.rank, window.Sync)

    def _obstacle(self, size_bytes: int) -> str:
        try:
            status = os.statvfs(_SHARED_MEMORY)
        except OSError:
            return ""  # not this system's place for it: MPI will know
        free = status.f_bavail * status.f_frsize
        if size_bytes <= free * _SPARE_SHARE:
            return ""
        return f"{_SHARED_MEMORY} has {free / 2**20:.0f} MiB free where {size_bytes / 2**20:.0f} are needed"

    def _first(self, reason: str) -> str:
        return next((r for r in self._everyone.allgather(reason) if r), "")
