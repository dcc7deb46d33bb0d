"""Alignment of memory: where arrays may begin."""

from __future__ import annotations

import numpy as np

# TensorFlow takes a NumPy array over without a copy only at this alignment (Eigen's and the allocator's).
ALIGNMENT_BYTES = 64


def aligned(size_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def padded(elements: int, dtype: np.dtype) -> int:
    """The next multiple of the alignment, in elements."""
    return aligned(elements * dtype.itemsize) // dtype.itemsize
