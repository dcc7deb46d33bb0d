"""Buffers for a bucket's results: persistent memory, used again once TensorFlow has let go of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.engine import _layout


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
        places = _layout.offsets(sizes, dtype)
        raw = self._free(places[-1] * dtype.itemsize + ALIGNMENT_BYTES)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        whole = raw[start : start + places[-1] * dtype.itemsize].view(dtype)
        return whole, [whole[place : place + size] for place, size in zip(places, sizes, strict=False)]

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        return sum(raw.nbytes for raw in self._owned)

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
