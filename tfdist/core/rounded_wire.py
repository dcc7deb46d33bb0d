"""Rounded wire: small whole numbers in blocks with a scale each, and error feedback.

What rounding has lost is added to the next values. A message is the numbers of all blocks, and then a float32 scale for
each block. Sources: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (2016); Karimireddy et al.,
"Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019), algorithm 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

_LARGE = np.float32(0.7)  # times the mean of the absolute values


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers that stand for values, from ``-most`` to ``most``.

    Attributes:
      bits: bits of a number in a message: 8, 4 or 2.
      most: largest number.
      block: number of elements that share a scale.
      scales: function (values, float32 [blocks, block]) -> value of the number 1, float32 [blocks].
    """

    bits: int
    most: int
    block: int
    scales: Callable[[np.ndarray], np.ndarray]

    def packed(self, numbers: np.ndarray) -> np.ndarray:
        """Return int8 numbers as bytes, uint8; the first number has the lowest bits. The array may be changed."""
        codes = numbers.view(np.uint8)
        share = 8 // self.bits
        if share == 1:
            return codes
        codes &= (1 << self.bits) - 1
        columns = codes.reshape(-1, share)
        packed = columns[:, 0].copy()
        for column in range(1, share):
            packed |= columns[:, column] << (self.bits * column)
        return packed

    def unpacked(self, message: np.ndarray) -> np.ndarray:
        """Return the numbers of ``packed``, int8."""
        share = 8 // self.bits
        if share == 1:
            return message.view(np.int8)
        numbers = np.empty([message.size, share], np.int8)
        for column in range(share):  # moved to the top, so that a shift back copies the sign
            numbers[:, column] = (message << (8 - self.bits * (column + 1))).view(np.int8) >> (8 - self.bits)
        return numbers.reshape(-1)


def of_largest(most: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function for ``Numbers.scales``, with which the largest value of a block is ``most``."""
    return lambda values: np.maximum(values.max(1), -values.min(1)) / np.float32(most)


def of_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the large values of each block, for ``Numbers.scales``, where the largest number is 1.

    Source: F. Li, B. Liu, "Ternary Weight Networks" (2016, arXiv 1605.04711), equations 5 and 6. Such a message is
    never farther from the values than a message of zeros. So error feedback converges.
    """
    sizes = np.abs(values)
    means = sizes.mean(1)
    large = sizes > _LARGE * means[:, None]
    sums = np.where(large, sizes, np.float32(0)).sum(1) + 0 * means  # NaN if a value is not finite
    found: np.ndarray = sums / np.maximum(large.sum(1), 1).astype(np.float32)
    return found


class Wire:
    """Encoder of one array between machines, used in each exchange. A message depends on earlier messages.

    Args:
      numbers: numbers of the messages.
      elements: number of elements of the array.

    Attributes:
      lost: float32 [elements], rounding errors of the values or sums that this rank sent last. They are added to the
        next values. They are zero at elements that this rank does not send.
    """

    def __init__(self, numbers: Numbers, elements: int) -> None:
        self._numbers = numbers
        self.lost = np.zeros(elements, np.float32)

    def size_bytes(self, elements: int) -> int:
        """Return the size of a message of so many elements."""
        return self._packed_bytes(elements) + 4 * -(-elements // self._numbers.block)

    def _packed_bytes(self, elements: int) -> int:
        return -(-elements * self._numbers.bits // 8)

    def encode(self, array: np.ndarray, part: slice) -> np.ndarray:
        """Return a message, uint8, with a part of the array (float32). The array is not changed."""
        elements, most, block = part.stop - part.start, self._numbers.most, self._numbers.block
        blocks = -(-elements // block)
        values = np.zeros(blocks * block, np.float32)
        np.add(array[part], self.lost[part], out=values[:elements])
        values = values.reshape(blocks, block)
        with np.errstate(all="ignore"):
            scales = self._numbers.scales(values)
            rounded = np.rint(values * np.where(scales > 0, 1 / scales, 0)[:, None])
            numbers = np.clip(rounded, -most, most, out=rounded).astype(np.int8)
            np.subtract(values, numbers * scales[:, None], out=values)
        self.lost[part] = values.reshape(-1)[:elements]
        if not np.isfinite(scales).all():  # such a block is lost once, and its error must not stay
            np.nan_to_num(self.lost[part], copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        size = self._packed_bytes(elements)
        return np.concatenate([self._numbers.packed(numbers.reshape(-1))[:size], scales.view(np.uint8)])

    def decode(self, message: np.ndarray, out: np.ndarray) -> None:
        """Write the values of a message into an array of its size. A value that is not finite makes its block so."""
        block, size = self._numbers.block, self._packed_bytes(out.size)
        whole = out.size // block * block
        numbers = self._numbers.unpacked(message[:size])[: out.size]
        scales = np.frombuffer(message[size:].tobytes(), np.float32)
        with np.errstate(all="ignore"):
            blocks = numbers[:whole].reshape(-1, block)
            np.multiply(blocks, scales[: len(blocks), None], out=out[:whole].reshape(-1, block))
            if whole < out.size:
                np.multiply(numbers[whole:], scales[-1], out=out[whole:])
