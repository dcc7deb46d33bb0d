"""Sketches: what is left of a rank's variables when their session is closed, to measure how far ranks are apart.

A sketch has the values of a small model. Of a large model it has sums of neighbouring values, so that it stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfdist.variables.replica_variables import READ, ReplicaVariable, ReplicaVariables

_MOST_SUMS = 1 << 22  # of all variables together
_SIGNS = 8191  # a prime: neighbouring blocks get other signs
_PIECE = 1 << 20  # numbers that are added up at a time


class Sketch(NamedTuple):
    """Sketch of one variable.

    Attributes:
      name: name for messages.
      kind: kind of the variable, see ``ReplicaVariable``.
      line: line that must be the same on all ranks.
      dtype: dtype of the variable, which determines how it is rounded.
      shape: shape of the variable.
      block: number of values in each sum; with 1 the sums are the values.
      sums: sums of blocks of values with fixed signs, [blocks], float64; int64 for integers.
      largest: largest finite absolute value; 0 if there is none.
      excused: whether it may differ; see ``ReplicaVariables.excuse``.
    """

    name: str
    kind: str
    line: str
    dtype: np.dtype
    shape: tuple[int, ...]
    block: int
    sums: np.ndarray
    largest: float
    excused: bool


def sketches(holder: ReplicaVariables, held: Sequence[ReplicaVariable], values: Sequence[np.ndarray]) -> list[Sketch]:
    """Return sketches of variables of a holder that have these values."""
    block = max(1, -(-sum(value.size for value in values) // _MOST_SUMS))
    found = []
    for one, value in zip(held, values, strict=True):
        sums, largest = _sums(np.ravel(value), block)
        excused = one.kind == READ and bool(holder.excuse(one))
        found.append(Sketch(one.name, one.kind, one.line, value.dtype, value.shape, block, sums, largest, excused))
    return found


def _sums(value: np.ndarray, block: int) -> tuple[np.ndarray, float]:
    """Return the sums of the blocks of a value [elements], and its largest finite absolute value."""
    real = value.dtype.kind in "fV" or value.dtype.name == "bfloat16"
    signs = np.random.RandomState(0).choice([-1, 1], _SIGNS)
    size = block * max(1, _PIECE // block)  # of a piece: a large variable must not be copied as a whole
    parts, largest = [np.zeros(0, np.float64 if real else np.int64)], 0.0
    for start in range(0, value.size, size):
        numbers = value[start : start + size].astype(np.float64 if real else np.int64)
        largest = max(largest, float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0)))
        if block > 1:
            places = np.arange(0, numbers.size, block)
            numbers = np.add.reduceat(numbers * np.resize(signs, numbers.size), places)
        parts.append(numbers)
    return np.concatenate(parts), largest
