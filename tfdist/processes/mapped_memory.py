"""Mapped memory: what a rank makes for the others of its machine, and they map where they need it.

A file without a name (memfd_create(2)), which the others open by its number in its maker's table of files (proc(5)).
Neither what a container forbids of ``process_vm_readv`` nor the size of its /dev/shm concerns it, and it is read and
written as any memory is, without the system.
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

NUMBERS = 3  # that are published of one: its file, its number among its maker's, its size
_READ, _WRITE, _SHARED, _POPULATE, _FAILED = 0x1, 0x2, 0x01, 0x8000, ctypes.c_void_p(-1).value
_made = itertools.count(1)
_SECRET_BYTES = 16
_NAME = "tfdist"


class Memory:
    """Memory of this rank's that others may map.

    Args:
      size_bytes: of it, at least 1.
      filled: all of it is there at once; else what is touched.

    Attributes:
      array: uint8 [size_bytes], zeros; the memory goes when this array and all its views are gone.
      number: its own, in this process.
      file: the others map it by this, until it is closed.
      close: call it when all have: a process may have a thousand files.

    Raises:
      OSError: there is no such memory, or not so much.
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
        """What the others find it by, as long as this object is there."""
        return self.file, self.number, self.array.nbytes


class MappedMemory:
    """The other ranks' memory, for one channel.

    Every rank publishes what it has made in shared memory; what orders publishing, mapping, reading and writing are the
    meetings of those who use this.

    Args:
      pids: of the node's ranks.
      tables: int64 [numbers] for each rank, shared.
      index: of this rank among them.
    """

    def __init__(self, pids: Sequence[int], tables: Sequence[np.ndarray], index: int) -> None:
        self._pids, self._tables, self._index = pids, tables, index
        self._staging: Memory | None = None
        self._staged: dict[int, tuple[int, np.ndarray]] = {}
        self._published: dict[int, Memory] = {}

    def staging(self, size_bytes: int) -> Memory:
        """Memory of at least this size for one operation of the channel at a time; the same for all of them."""
        if self._staging is None or self._staging.array.nbytes < size_bytes:
            self._staging = Memory(size_bytes, filled=False)
        return self._staging

    def publish(self, place: int, memory: Memory) -> None:
        """Tell the others of it; they may map it after the next meeting, and all of them must."""
        self._published[place] = memory
        self._tables[self._index][NUMBERS * place : NUMBERS * (place + 1)] = memory.published

    def withdraw(self) -> None:
        """All have met, and have mapped what they had not known."""
        for memory in self._published.values():
            memory.close()
        self._published = {}

    def number(self, index: int, place: int) -> int:
        """Which memory another rank has published at a place."""
        return int(self._tables[index][NUMBERS * place + 1])

    def map(self, index: int, place: int) -> np.ndarray:
        """What another rank has published at a place: uint8 [its size], until nobody holds it.

        Raises:
          OSError: it is not there, or this rank may not.
        """
        file, _, size_bytes = self._tables[index][NUMBERS * place : NUMBERS * (place + 1)].tolist()
        return _mapped(self._pids[index], file, size_bytes)

    def staged(self, index: int, place: int) -> np.ndarray:
        """Another rank's staging, mapped once; see ``map``."""
        number = self.number(index, place)
        if index not in self._staged or self._staged[index][0] != number:
            self._staged[index] = number, self.map(index, place)
        return self._staged[index][1]


def obstacle(everyone: Any, neighbours: Sequence[int], rank: int) -> str:
    """Why some rank cannot map another's memory; empty if all can.

    Collective: all ranks.

    Args:
      everyone: their channel.
      neighbours: the ranks of this machine.
      rank: this one.
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
            # Another container's process may have the same number: what is there must be what its rank has written.
            if _mapped(pid, file, _SECRET_BYTES).tobytes() != secret:
                return f"process {pid} is another one's here"
        except OSError as error:
            return str(error)
    return ""


def _mapped(pid: int, file: int, size_bytes: int) -> np.ndarray:
    path = f"/proc/{pid}/fd/{file}"
    # (Another container's file may be shorter than what is mapped, and end the process that reads behind its end.)
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise OSError(errno.ESRCH, f"{path} is another process's here")
    own = os.open(path, os.O_RDWR)
    try:
        return _map(own, size_bytes, filled=True)
    finally:
        os.close(own)


def _map(file: int, size_bytes: int, filled: bool) -> np.ndarray:
    # (mmap.mmap keeps the file open, of which a process may have a thousand.)
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
