"""Which tensors travel together: a pure plan from (dtype, bytes) in order to buckets.

One message per tensor would pay MPI's latency once per variable; one message for all would begin only after the last
gradient. Buckets are cut in the given order, so that all ranks, whose graphs are equal, cut alike.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import numpy as np

# TensorFlow takes a NumPy array over without a copy only at this alignment (Eigen's and the allocator's).
ALIGNMENT_BYTES = 64
_FIRST_IS_SMALLER = 8


def padded(elements: int, dtype: np.dtype) -> int:
    """The next multiple of the alignment, in elements."""
    step = ALIGNMENT_BYTES // dtype.itemsize
    return -(-elements // step) * step


@dataclasses.dataclass(frozen=True)
class Item:
    """One tensor as it travels: its dtype on the wire and its size."""

    dtype: str
    size_bytes: int


def plan(items: Sequence[Item], bucket_bytes: int) -> list[list[int]]:
    """Cut the items into buckets of one dtype each; the first is small, so that the exchange begins early.

    Args:
      items: in the order in which the backward pass makes them.
      bucket_bytes: a bucket is closed before it would grow beyond this; a larger item stands alone.

    Returns:
      Buckets in the order of their first items; in each the indices of its items, ascending.
    """
    buckets: list[list[int]] = []
    open_bucket: dict[str, int] = {}
    filled: dict[str, int] = {}
    for index, item in enumerate(items):
        number = open_bucket.get(item.dtype)
        limit = bucket_bytes if number else bucket_bytes // _FIRST_IS_SMALLER
        if number is None or filled[item.dtype] + item.size_bytes > limit:
            number = open_bucket[item.dtype] = len(buckets)
            buckets.append([])
            filled[item.dtype] = 0
        buckets[number].append(index)
        filled[item.dtype] += item.size_bytes
    return buckets


Piece = Sequence[tuple[int, slice, slice]]


def pack(sizes: Sequence[int], room: int) -> Sequence[Piece]:
    """Lay tensors end to end and cut them into pieces.

    Args:
      sizes: elements of each tensor.
      room: elements of a piece at most.

    Returns:
      For each piece: (tensor, part of it, place in the piece), in order; no piece is empty.
    """
    pieces: list[list[tuple[int, slice, slice]]] = []
    used = room
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            if used == room:
                pieces.append([])
                used = 0
            length = min(size - start, room - used)
            pieces[-1].append((tensor, slice(start, start + length), slice(used, used + length)))
            start += length
            used += length
    return pieces


def cut(sizes: Sequence[int], offsets: Sequence[int], own: slice, room: int) -> Sequence[Piece]:
    """Cut a stretch of a buffer in which tensors lie at given places.

    Args:
      sizes: elements of each tensor.
      offsets: where each begins in the buffer, ascending.
      own: the stretch of the buffer.
      room: elements from the first to the last of a piece at most.

    Returns:
      For each piece: (tensor, part of it, place in the buffer), in order; no piece is empty.
    """
    pieces: list[list[tuple[int, slice, slice]]] = []
    end = own.start
    for tensor, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        start, stop = max(offset, own.start), min(offset + size, own.stop)
        while start < stop:
            if not pieces or start >= end:
                pieces.append([])
                end = start + room
            until = min(stop, end)
            pieces[-1].append((tensor, slice(start - offset, until - offset), slice(start, until)))
            start = until
    return pieces


def offsets(sizes: Sequence[int], dtype: np.dtype) -> list[int]:
    """Where tensors begin that are laid out one after the other, aligned; and where the last ends."""
    return [0, *np.cumsum([padded(size, dtype) for size in sizes]).tolist()]


class Buffers:
    """Persistent, aligned memory for one bucket; a new one only while TensorFlow still holds the last results."""

    def __init__(self) -> None:
        self._owned: list[np.ndarray] = []

    def take(self, sizes: Sequence[int], dtype: np.dtype) -> tuple[np.ndarray, list[np.ndarray]]:
        """A free buffer.

        Args:
          sizes: elements of each tensor.
          dtype: of all.

        Returns:
          The whole as one flat array, zero between the tensors, and each tensor's flat part, aligned to 64 bytes.
        """
        places = offsets(sizes, dtype)
        raw = self._free(places[-1] * dtype.itemsize + ALIGNMENT_BYTES)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        whole = raw[start : start + places[-1] * dtype.itemsize].view(dtype)
        return whole, [whole[place : place + size] for place, size in zip(places, sizes, strict=False)]

    def _free(self, size_bytes: int) -> np.ndarray:
        for raw, references in zip(self._owned, _references(self._owned), strict=True):
            if raw.nbytes == size_bytes and references == _IDLE_REFERENCES:
                return raw
        self._owned = [raw for raw in self._owned if raw.nbytes == size_bytes][-2:]
        self._owned.append(np.zeros(size_bytes, np.uint8))
        return self._owned[-1]


def _references(arrays: list[np.ndarray]) -> list[int]:
    """How many hold each array: a view holds its owner."""
    return [sys.getrefcount(array) for array in arrays]


_IDLE_REFERENCES = _references([np.zeros(1)])[0]
