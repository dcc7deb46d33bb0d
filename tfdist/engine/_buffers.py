"""Buffers for a bucket's results: persistent memory, reused after TensorFlow has released it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.engine import _layout
from tfdist.processes import cuda_memory

BUFFERS = 3  # kept for a bucket, at most
_CAPACITY_BITS = 3  # significant bits of a capacity
Allocate = Callable[[int], np.ndarray]


def private(size_bytes: int) -> np.ndarray:
    """Return memory private to this process: uint8 [size_bytes], zeros."""
    return np.zeros(size_bytes, np.uint8)


def capacity(elements: int) -> int:
    """Return the number of elements to make room for, so that sizes which differ from step to step are few."""
    step = max(1, (1 << elements.bit_length()) >> _CAPACITY_BITS)
    return -(-elements // step) * step


class _Buffer:
    """Memory for tensors of given sizes. Each tensor is aligned; the gaps between tensors are zero."""

    def __init__(self, sizes: Sequence[int], dtype: np.dtype, allocate: Allocate) -> None:
        self.kind = (tuple(sizes), dtype)
        places = _layout.offsets(sizes, dtype)
        size_bytes = places[-1] * dtype.itemsize
        self._raw = allocate(size_bytes + ALIGNMENT_BYTES)
        start = -self._raw.ctypes.data % ALIGNMENT_BYTES
        self.whole = self._raw[start : start + size_bytes].view(dtype)
        self.parts = [self.whole[place : place + size] for place, size in zip(places, sizes, strict=False)]
        self.size_bytes = self._raw.nbytes
        cuda_memory.pin(self._raw)
        self._idle_references = self._references

    @property
    def _references(self) -> int:
        """Number of references to the memory: every view, also of a view, refers to the array that owns it."""
        return sys.getrefcount(self._raw)

    @property
    def idle(self) -> bool:
        """Whether no array made from the parts is in use."""
        return self._references == self._idle_references


class Buffers:
    """Persistent, aligned memory for one bucket. Another buffer is made only while TensorFlow holds the last results.

    Args:
      allocate: function that returns a number of zero bytes.
    """

    def __init__(self, allocate: Allocate = private) -> None:
        self._allocate = allocate
        self._owned: list[_Buffer] = []

    def take(self, sizes: Sequence[int], dtype: np.dtype) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return a free buffer; it is in use as long as any view of a part exists. Do not keep the parts themselves.

        Args:
          sizes: number of elements of each tensor.
          dtype: dtype of all tensors.

        Returns:
          The whole buffer as a flat array, zero between the tensors; and each tensor's flat part, aligned to 64 bytes.
        """
        kind = (tuple(sizes), dtype)
        for buffer in self._owned:
            if buffer.kind == kind and buffer.idle:
                return buffer.whole, buffer.parts
        buffer = _Buffer(sizes, dtype, self._allocate)
        self._owned = [b for b in self._owned if b.kind == kind][1 - BUFFERS :] + [buffer]
        return buffer.whole, buffer.parts

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.size_bytes for buffer in self._owned)
