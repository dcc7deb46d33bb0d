"""Operations: how tensors of the ranks are combined."""

from __future__ import annotations

import enum
from typing import Any


class ReduceOp(enum.IntEnum):
    """How tensors of the ranks are combined, element by element; ``Adasum`` by ``named.adasum``."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product


def op_of(op: Any, average: bool | None) -> ReduceOp:
    """Of the argument ``op`` and the older ``average``.

    Raises:
      ValueError: both are given, or the former is none.
    """
    if op is not None and average is not None:
        raise ValueError("op and average mean the same, and both are given: leave average out")
    if op is None:
        return ReduceOp.Average if average in (None, True) else ReduceOp.Sum
    try:
        return ReduceOp(op)
    except ValueError:
        names = ", ".join(f"hvd.{one.name}" for one in ReduceOp)
        raise ValueError(f"op={op!r}; it is one of {names}") from None
