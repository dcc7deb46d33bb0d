"""Mapped memory: memory that a rank makes, and that the other ranks of its machine map.

It is a file without a name (memfd_create(2)). The others open it through its maker's table of files (proc(5)). It does
not need ``process_vm_readv``, which containers may forbid, and no space in /dev/shm. Ranks read and write it as any
memory, without system calls.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

# Memory that each rank publishes: buffers into which the other ranks write results, and a copy of what they add.
RESULTS, STAGING = range(2)
_NUMBERS = 3  # published for each memory: its file descriptor, its number within its process, its size
TABLE_NUMBERS = 2 * _NUMBERS
_READ, _WRITE, _SHARED, _POPULATE, _FAILED = 0x1, 0x2, 0x01, 0x8000, ctypes.c_void_p(-1).value
_made = itertools.count(1)
_SECRET_BYTES = 16
_NAME = "tfdist"


class Memory:
    """Memory of this rank that other ranks may map.

    Args:
      size_bytes: size, at least 1.
      filled: True to allocate all pages at once; False to allocate a page when it is touched.

    Attributes:
      array: uint8 [size_bytes], zeros; the memory is freed when this array and all its views are gone.
      number: number of this memory, unique in this process.
      file: file descriptor by which the other ranks map the memory, until ``close``.
      close: function to call when all ranks have mapped the memory; a process may have only a thousand files.

    Raises:
      OSError: the system has no such memory, or not enough.
    """

    def __init__(self, size_bytes: int, filled: bool = True) -> None:
        size_bytes = max(1, size_bytes)
        self.number = next(_made)
        self.file = os.memfd_create(_NAME)
        self.close = weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, size_bytes)
        if filled:
            os.posix_fallocate(self.file, 0, size_bytes)
        self.array = _map(self.file, size_bytes, filled)

    @property
    def published(self) -> tuple[int, int, int]:
        """The numbers by which other ranks find the memory, as long as this object exists."""
        return self.file, self.number, self.array.nbytes


class MappedMemory:
    """The other ranks' memory, for one channel.

    Every rank publishes its memory in a table in shared memory. The callers' barriers order publishing, mapping,
    reading and writing.

    Args:
      pids: process IDs of the node's ranks.
      tables: int64 [TABLE_NUMBERS] for each rank of the node, in shared memory.
      index: index of this rank on the node.
    """

    def __init__(self, pids: Sequence[int], tables: Sequence[np.ndarray], index: int) -> None:
        self._pids, self._tables, self._index = pids, tables, index
        self._staging: Memory | None = None
        self._staged: dict[int, tuple[int, np.ndarray]] = {}
        self._published: dict[int, Memory] = {}

    def staging(self, size_bytes: int) -> Memory:
        """Return memory of at least this size. All operations of the channel use the same memory, one at a time."""
        if self._staging is None or self._staging.array.nbytes < size_bytes:
            self._staging = Memory(size_bytes, filled=False)
        return self._staging

    def publish(self, place: int, memory: Memory) -> None:
        """Publish memory at a place of the table. All other ranks must map it, after the next barrier."""
        self._published[place] = memory
        self._tables[self._index][_NUMBERS * place : _NUMBERS * (place + 1)] = memory.published

    def withdraw(self) -> None:
        """Close the files of published memory, when all ranks have mapped it and have met at a barrier."""
        for memory in self._published.values():
            memory.close()
        self._published = {}

    def number(self, index: int, place: int) -> int:
        """Return the number of the memory that another rank has published at a place."""
        return int(self._tables[index][_NUMBERS * place + 1])

    def map(self, index: int, place: int) -> np.ndarray:
        """Map the memory that another rank has published at a place: uint8 [its size], until the array is gone.

        Raises:
          OSError: the memory does not exist, or this rank may not map it.
        """
        file, _, size_bytes = self._tables[index][_NUMBERS * place : _NUMBERS * (place + 1)].tolist()
        return mapped(self._pids[index], file, size_bytes)

    def staged(self, index: int, place: int) -> np.ndarray:
        """Return another rank's staging memory, which is mapped once; see ``map``."""
        number = self.number(index, place)
        if index not in self._staged or self._staged[index][0] != number:
            self._staged[index] = number, self.map(index, place)
        return self._staged[index][1]


def obstacle(everyone: Any, neighbours: Sequence[int], rank: int) -> str:
    """Return why some rank cannot map another rank's memory; empty if all can.

    Collective: all ranks.

    Args:
      everyone: channel of all ranks.
      neighbours: ranks of this machine.
      rank: this rank.
    """
    place = "the trial of mapped memory"
    secret = os.urandom(_SECRET_BYTES)
    try:
        memory = Memory(_SECRET_BYTES)
        memory.array[:] = np.frombuffer(secret, np.uint8)
        own = (os.getpid(), memory.file, secret)
    except (OSError, AttributeError) as error:
        own = (0, 0, str(error).encode())
    told = everyone.all_gather_object(own, place)
    failed = everyone.all_gather_object(_failure([told[other] for other in neighbours if other != rank]), place)
    return next(filter(None, failed), "")


def _failure(others: Sequence[tuple[int, int, bytes]]) -> str:
    for pid, file, secret in others:
        if not pid:
            return secret.decode()
        try:
            # A process in another container may have the same ID: the memory must contain what its rank has written.
            if mapped(pid, file, _SECRET_BYTES).tobytes() != secret:
                return f"process ID {pid} belongs to another process here"
        except OSError as error:
            return str(error)
    return ""


def mapped(pid: int, file: int, size_bytes: int) -> np.ndarray:
    """Map a file of a process, which has made it as ``Memory``: uint8 [size_bytes], until the array is gone.

    Raises:
      OSError: the memory does not exist, belongs to another program, or may not be mapped.
    """
    path, made = f"/proc/{pid}/fd/{file}", f"/memfd:{_NAME}"
    other = OSError(errno.ESRCH, f"{path} belongs to another process here")
    if not os.readlink(path).startswith(made):  # to open a device may disturb it
        raise other
    own = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        # (A file of another container may be shorter than the mapping: a read behind its end would end this process.)
        if not os.readlink(f"/proc/self/fd/{own}").startswith(made) or os.fstat(own).st_size != size_bytes:
            raise other
        return _map(own, size_bytes, filled=True)
    finally:
        os.close(own)


def _map(file: int, size_bytes: int, filled: bool) -> np.ndarray:
    # (mmap.mmap would keep the file open, and a process may have only a thousand files.)
    library = _library()
    flags = _SHARED | (_POPULATE if filled else 0)
    start = library.mmap(None, size_bytes, _READ | _WRITE, flags, file, 0)
    if start == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"memory of {size_bytes} bytes cannot be mapped: {os.strerror(number)}")
    memory = (ctypes.c_uint8 * size_bytes).from_address(start)
    weakref.finalize(memory, library.munmap, start, size_bytes).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_int
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
