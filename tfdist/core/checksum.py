"""Checksum of arrays: whether two ranks have the same values, told by one number."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np


def checksum(arrays: Sequence[Any], start: int = 0) -> int:
    """A number from 1 to 2^60 - 1, in which the order of the values counts.

    Two different sequences of arrays have the same one at most about once in 2^32 times.

    Args:
      arrays: of any shapes and dtypes, objects included.
      start: another such number.
    """
    # The remainder sees which value stands where, in 32 bits; the sum has 28 bits more of what values there are.
    remainder, total = start & 0xFFFFFFFF, start >> 32
    for array in map(np.asarray, arrays):
        content: Any = np.frombuffer(repr(array.tolist()).encode(), np.uint8) if array.dtype.hasobject else array
        content = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        remainder = zlib.crc32(content, remainder)
        total += int(content[: content.size // 8 * 8].view(np.uint64).sum(dtype=np.uint64))
        total += int.from_bytes(content[content.size // 8 * 8 :].tobytes(), "little")
    return (total * 0x9E3779B1 % (1 << 64) >> 36 << 32 | remainder) or 1
