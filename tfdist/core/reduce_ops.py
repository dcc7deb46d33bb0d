"""Reduce operations: combine the ranks' arrays to one, in the order of the ranks, block by block within the cache.

Each element is computed once, and the order of additions is fixed. So all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np

Op = Literal["sum", "mean", "min", "max", "product"]
OPS: tuple[Op, ...] = ("sum", "mean", "min", "max", "product")

_COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}
# A block of each contribution and of the result stays in a core's second-level cache between the passes over it.
_BLOCK_BYTES = 1 << 18


def is_narrow(dtype: np.dtype) -> bool:
    """Return whether a dtype is too coarse for sums: float16, bfloat16 (for NumPy a void type of ml_dtypes)."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def wide(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of a dtype are added."""
    return np.dtype(np.float32) if is_narrow(dtype) else dtype


def combine(
    op: Op,
    arrays: Sequence[np.ndarray],
    out: np.ndarray,
    divisor: int = 1,
) -> None:
    """Combine flat arrays element by element. Narrow dtypes are combined in float32 and rounded once.

    Args:
      op: operation; ``mean`` is a sum, for which the caller gives the ``divisor``.
      arrays: [n] each, of one dtype, in the order of combination; empty: the result is the operation's identity.
      out: [n], the result; may be one of the first two arrays.
      divisor: number by which the result is divided.
    """
    block = max(1, _BLOCK_BYTES // out.itemsize)
    wide = np.empty(min(block, out.size), np.float32) if is_narrow(out.dtype) else None
    for start in range(0, out.size, block):
        part = slice(start, min(start + block, out.size))
        result = out[part] if wide is None else wide[: part.stop - start]
        _combine_block(op, [array[part] for array in arrays], result)
        scale(result, divisor)
        if wide is not None:
            out[part] = result


def _combine_block(op: Op, blocks: Sequence[np.ndarray], result: np.ndarray) -> None:
    if not blocks:
        result[:] = identity(op, result.dtype)
        return
    if len(blocks) == 1:
        result[:] = blocks[0]
        return
    if blocks[0].dtype != result.dtype:
        blocks = [block.astype(result.dtype) for block in blocks]
    _COMBINE[op](blocks[0], blocks[1], out=result)
    for block in blocks[2:]:
        _COMBINE[op](result, block, out=result)


def copy(source: np.ndarray, target: np.ndarray, divisor: int = 1) -> None:
    """Copy ``source``, divided by ``divisor``, to ``target``."""
    if divisor == 1:
        np.copyto(target, source)
    elif divisor & (divisor - 1):
        np.divide(source, divisor, out=target)
    else:
        np.multiply(source, source.dtype.type(1 / divisor), out=target)  # exact for powers of two, and faster


def scale(array: np.ndarray, divisor: int) -> None:
    """Divide an array by ``divisor`` in place."""
    if divisor > 1:
        copy(array, array, divisor)


def identity(op: Op, dtype: np.dtype) -> object:
    """Return the operation's identity: combined with any value, it leaves that value unchanged."""
    if op in ("sum", "mean"):
        return dtype.type(0)
    if op == "product":
        return dtype.type(1)
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.max if op == "min" else limits.min
    return dtype.type(np.inf if op == "min" else -np.inf)


def stretch(elements: int, start: Fraction, stop: Fraction, itemsize: int) -> slice:
    """Return the elements from ``start`` to ``stop``, fractions of all; both ends are moved to cache lines."""
    return slice(*(_bound(elements, at.numerator, at.denominator, itemsize) for at in (start, stop)))


def slices(elements: int, parts: int, itemsize: int) -> list[slice]:
    """Cut ``elements`` elements into nearly equal parts that begin on cache lines."""
    bounds = [_bound(elements, i, parts, itemsize) for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(bounds)]


def _bound(elements: int, numerator: int, denominator: int, itemsize: int) -> int:
    """Return the first element of the cache line at a fraction of all elements; at most ``elements``."""
    line = max(1, 64 // itemsize)
    lines = -(-elements // line)
    return min(elements, lines * numerator // denominator * line)
