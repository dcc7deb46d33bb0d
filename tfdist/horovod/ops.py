"""Reduction operations: Average, Sum, Adasum, Min, Max, Product."""

from __future__ import annotations

import enum
from typing import Any


class ReduceOp(enum.IntEnum):
    """Reductions of the ranks' tensors, element by element; for ``Adasum`` see ``named.adasum``."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product


def op_of(op: Any, average: bool | None) -> ReduceOp:
    """Return the reduction for the argument ``op`` or the older argument ``average``.

    Raises:
      ValueError: both are given, or ``op`` is no ``ReduceOp``.
    """
    if op is not None and average is not None:
        raise ValueError("op and average mean the same, but both are given: leave average out")
    if op is None:
        return ReduceOp.Average if average in (None, True) else ReduceOp.Sum
    try:
        return ReduceOp(op)
    except ValueError:
        names = ", ".join(f"hvd.{one.name}" for one in ReduceOp)
        raise ValueError(f"op={op!r} must be one of {names}") from None


__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
