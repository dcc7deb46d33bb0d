"""Process memory of a machine's other ranks, read and written where it lies: one copy where shared memory takes two.

Linux lets a process do so (process_vm_readv(2)), if both belong to one user and neither the container nor the security
module Yama objects; MPI libraries use it for large messages ("CMA").
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_MOST_VECTORS = 1024  # IOV_MAX
_MOST_BYTES = 1 << 30  # a call transfers less than 2 GiB
_PR_SET_PTRACER = 0x59616D61


def address(array: np.ndarray) -> int:
    """Where an array lies in this process."""
    return int(array.__array_interface__["data"][0])


def allow_siblings() -> None:
    """Under Yama's default only ancestors may read: let the launcher, and so what it started, do it too."""
    with contextlib.suppress(AttributeError):  # no such call: then no such rule
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)


# What others may read and write, by who has published it: it lives until it is withdrawn, whoever drops the rest.
_published: dict[ProcessMemory, Sequence[np.ndarray]] = {}


class ProcessMemory:
    """The other ranks' memory, for one channel.

    Every rank publishes addresses in shared memory; what orders publishing, reading and writing are the meetings of
    those who use this. After one that failed nothing is withdrawn: a rank that comes late finds what was published.

    Args:
      pids: of the node's ranks.
      tables: int64 [addresses] for each rank, shared.
      index: of this rank among them.

    Raises:
      OSError: there are no such system calls here.
    """

    def __init__(self, pids: Sequence[int], tables: Sequence[np.ndarray], index: int) -> None:
        self._pids = pids
        self._tables = tables
        self._index = index
        library = ctypes.CDLL(None, use_errno=True)
        self._readv = _typed(library, "process_vm_readv")
        self._writev = _typed(library, "process_vm_writev")

    def publish(self, arrays: Sequence[np.ndarray]) -> None:
        """Tell the others where this rank's arrays lie; they may read and write them after the next meeting."""
        _published[self] = arrays
        self._tables[self._index][: len(arrays)] = [address(array) for array in arrays]

    def withdraw(self) -> None:
        """All have met, and have read and written what they had to."""
        del _published[self]

    def addresses(self, index: int) -> np.ndarray:
        """What another rank has published: int64 [addresses]."""
        return self._tables[index]

    def read(self, index: int, sources: np.ndarray, targets: np.ndarray, size_bytes: int) -> None:
        """Copy parts of another rank's memory.

        Args:
          index: of the rank.
          sources: int64 [parts, 2], addresses there and sizes in bytes (that is struct iovec); contiguous.
          targets: int64 [parts, 2], addresses here and the same sizes; contiguous.
          size_bytes: of all parts.

        Raises:
          OSError: the system refuses, or the memory is not there.
        """
        self._transfer(self._readv, index, targets, sources, size_bytes)

    def write(self, index: int, source: np.ndarray, target: int) -> None:
        """Copy a contiguous array into another rank's memory.

        Args:
          index: of the rank.
          source: what to copy.
          target: address there.

        Raises:
          OSError: the system refuses, or the memory is not there.
        """
        for start in range(0, source.nbytes, _MOST_BYTES):
            size = min(_MOST_BYTES, source.nbytes - start)
            ours, theirs = np.array([[address(source) + start, size]]), np.array([[target + start, size]])
            self._transfer(self._writev, index, ours, theirs, size)

    def _transfer(
        self, call: Callable[..., int], index: int, ours: np.ndarray, theirs: np.ndarray, size_bytes: int
    ) -> None:
        done = 0
        for first in range(0, len(ours), _MOST_VECTORS):
            count = min(_MOST_VECTORS, len(ours) - first)
            copied = call(self._pids[index], address(ours) + 16 * first, count, address(theirs) + 16 * first, count, 0)
            if copied < 0:
                number = ctypes.get_errno()
                raise OSError(number, f"the memory of process {self._pids[index]}: {os.strerror(number)}")
            done += copied
        if done != size_bytes:
            raise OSError(f"only {done} of {size_bytes} bytes of process {self._pids[index]} could be copied")


def _typed(library: Any, name: str) -> Callable[..., int]:
    function = getattr(library, name, None)
    if function is None:
        raise OSError(f"this system has no {name}")
    vectors = (ctypes.c_void_p, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    function.argtypes = [ctypes.c_int, *vectors, *vectors, ctypes.c_ulong]
    typed: Callable[..., int] = function
    return typed
