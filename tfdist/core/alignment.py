"""Alignment of memory: the multiple of bytes at which arrays begin."""

from __future__ import annotations

import numpy as np

# TensorFlow takes a NumPy array over without a copy only at this alignment (Eigen's and the allocator's).
ALIGNMENT_BYTES = 64


def aligned(size_bytes: int) -> int:
    """Round a size in bytes up to a multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def padded(elements: int, dtype: np.dtype) -> int:
    """Round a number of elements up to a multiple of the alignment."""
    return aligned(elements * dtype.itemsize) // dtype.itemsize
