"""Gradient buckets: which tensors travel together, a pure plan from (dtype, bytes) in order.

One message per tensor would pay MPI's latency once per variable; one message for all would begin only after the last
gradient. Buckets are cut in the given order, so that all ranks, whose graphs are equal, cut alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

_FIRST_IS_SMALLER = 8


@dataclasses.dataclass(frozen=True)
class Item:
    """One tensor as it travels: its dtype on the wire and its size."""

    dtype: str
    size_bytes: int


def plan(items: Sequence[Item], bucket_bytes: int) -> list[list[int]]:
    """Cut the items into buckets of one dtype each; the first is small, so that the exchange begins early.

    Args:
      items: in the order in which the backward pass makes them.
      bucket_bytes: a bucket is closed before it would grow beyond this; a larger item stands alone.

    Returns:
      Buckets in the order of their first items; in each the indices of its items, ascending.
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
