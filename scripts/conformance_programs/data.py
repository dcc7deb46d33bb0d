"""What the programs learn: a regression with a category, cut into batches and these into the ranks' parts."""

from __future__ import annotations

import numpy as np

ROWS = 48  # of a whole batch
PARTS = 12  # the number of ranks divides it: programs may cut a batch into so many tasks
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


def batches(rank: int, size: int, steps: int = 5) -> list[Batch]:
    """A rank's part of each batch: x [rows, 5], y [rows, 3], category [rows] of 7."""
    random = np.random.RandomState(3)
    result = []
    for _ in range(steps):
        x, y = random.randn(ROWS, 5).astype("float32"), random.randn(ROWS, 3).astype("float32")
        category = random.randint(0, 7, ROWS).astype("int32")
        result.append((x[rank::size], y[rank::size], category[rank::size]))
    return result


def arrays(rank: int, size: int, steps: int = 5) -> Batch:
    """The same as three arrays, of which ``rows(size)`` rows after one another are a batch."""
    x, y, category = (np.concatenate(parts) for parts in zip(*batches(rank, size, steps), strict=True))
    return x, y, category


def rows(size: int) -> int:
    """How many rows of a batch each rank has."""
    return ROWS // size
