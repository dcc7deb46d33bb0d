"""Gradient buckets: plans which tensors travel in one message, from their dtypes and sizes.

One message per tensor would pay MPI's latency for each variable. One message for all tensors could begin only after the
last gradient. Buckets are cut in the given order. All ranks have equal graphs, so they cut the same buckets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

_FIRST_IS_SMALLER = 8


@dataclasses.dataclass(frozen=True)
class Item:
    """A tensor to exchange: its dtype on the wire and its size."""

    dtype: str
    size_bytes: int


def plan(items: Sequence[Item], bucket_bytes: int) -> list[list[int]]:
    """Cut the items into buckets of one dtype each. The first bucket is small, so that the exchange begins early.

    Args:
      items: tensors in the order in which the backward pass makes them.
      bucket_bytes: largest size of a bucket; a larger item has a bucket of its own.

    Returns:
      Indices of the items of each bucket, ascending; the buckets are in the order of their first items.
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
