"""Process memory: reads and writes the memory of other ranks on a machine, with one copy; shared memory takes two.

Linux allows it (process_vm_readv(2)) if both processes belong to one user, and if neither the container nor the
security module Yama forbids it. MPI libraries use it for large messages ("CMA").
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
    """Return the address of an array in this process."""
    return int(array.__array_interface__["data"][0])


def allow_siblings() -> None:
    """Allow the launcher and all that it started to read this process: Yama's default allows only ancestors."""
    with contextlib.suppress(AttributeError):  # a system without this call does not have Yama's rule
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)


# Arrays that other ranks may read and write, by their publisher. They stay alive here until they are withdrawn.
_published: dict[ProcessMemory, Sequence[np.ndarray]] = {}


class ProcessMemory:
    """The other ranks' memory, for one channel.

    Every rank publishes addresses in shared memory. The callers' barriers order publishing, reading and writing. After
    a barrier that failed nothing is withdrawn, so that a late rank still finds the published arrays.

    Args:
      pids: process IDs of the node's ranks.
      tables: int64 [addresses] for each rank of the node, in shared memory.
      index: index of this rank on the node.

    Raises:
      OSError: this system does not have the system calls.
    """

    def __init__(self, pids: Sequence[int], tables: Sequence[np.ndarray], index: int) -> None:
        self._pids = pids
        self._tables = tables
        self._index = index
        library = ctypes.CDLL(None, use_errno=True)
        self._readv = _typed(library, "process_vm_readv")
        self._writev = _typed(library, "process_vm_writev")

    def publish(self, arrays: Sequence[np.ndarray]) -> None:
        """Publish the addresses of this rank's arrays. Others may read and write the arrays after the next barrier."""
        _published[self] = arrays
        self._tables[self._index][: len(arrays)] = [address(array) for array in arrays]

    def withdraw(self) -> None:
        """Release the published arrays, when all ranks have read and written them and have met at a barrier."""
        del _published[self]

    def addresses(self, index: int) -> np.ndarray:
        """Return the addresses that another rank has published: int64 [addresses]."""
        return self._tables[index]

    def read(self, index: int, sources: np.ndarray, targets: np.ndarray, size_bytes: int) -> None:
        """Copy parts of another rank's memory.

        Args:
          index: index of that rank on the node.
          sources: int64 [parts, 2], addresses in that rank and sizes in bytes (struct iovec); contiguous.
          targets: int64 [parts, 2], addresses in this rank and the same sizes; contiguous.
          size_bytes: total size of all parts.

        Raises:
          OSError: the system refuses, or the memory does not exist.
        """
        self._transfer(self._readv, index, targets, sources, size_bytes)

    def write(self, index: int, source: np.ndarray, target: int) -> None:
        """Copy a contiguous array into another rank's memory.

        Args:
          index: index of that rank on the node.
          source: array to copy.
          target: address in that rank.

        Raises:
          OSError: the system refuses, or the memory does not exist.
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
