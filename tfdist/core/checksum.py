"""Checksum of arrays: one number, by which ranks compare their values."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np


def checksum(arrays: Sequence[Any], start: int = 0) -> int:
    """Return a number from 1 to 2^60 - 1 that depends on the values and on their order.

    Two different sequences of arrays have the same checksum at most about once in 2^32 times.

    Args:
      arrays: arrays of any shapes and dtypes, objects included.
      start: checksum of earlier arrays, to continue; 0: none.
    """
    # The remainder (32 bits) depends on the order of the values. The sum adds 28 bits that do not depend on the order.
    remainder, total = start & 0xFFFFFFFF, start >> 32
    for array in map(np.asarray, arrays):
        content: Any = np.frombuffer(repr(array.tolist()).encode(), np.uint8) if array.dtype.hasobject else array
        content = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        remainder = zlib.crc32(content, remainder)
        total += int(content[: content.size // 8 * 8].view(np.uint64).sum(dtype=np.uint64))
        total += int.from_bytes(content[content.size // 8 * 8 :].tobytes(), "little")
    return (total * 0x9E3779B1 % (1 << 64) >> 36 << 32 | remainder) or 1
