"""Data of the programs: a regression with a category, cut into batches, and each batch into the ranks' parts."""

from __future__ import annotations

import numpy as np

ROWS = 48  # rows of a whole batch
PARTS = 12  # a multiple of the number of ranks; programs may cut a batch into 12 tasks
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


def batches(rank: int, size: int, steps: int = 5) -> list[Batch]:
    """Return a rank's part of each batch: x [rows, 5], y [rows, 3], category [rows] from 0 to 6."""
    random = np.random.RandomState(3)
    result = []
    for _ in range(steps):
        x, y = random.randn(ROWS, 5).astype("float32"), random.randn(ROWS, 3).astype("float32")
        category = random.randint(0, 7, ROWS).astype("int32")
        result.append((x[rank::size], y[rank::size], category[rank::size]))
    return result


def arrays(rank: int, size: int, steps: int = 5) -> Batch:
    """Return a rank's parts of all batches as three arrays; each ``rows(size)`` successive rows are a batch."""
    x, y, category = (np.concatenate(parts) for parts in zip(*batches(rank, size, steps), strict=True))
    return x, y, category


def rows(size: int) -> int:
    """Return the number of each rank's rows of a batch."""
    return ROWS // size
