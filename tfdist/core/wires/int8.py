"""Float32 as int8: blocks with a scale each, and error feedback, which adds rounding errors to the next values.

A message is the int8 numbers of all blocks, and then a float32 scale for each block. It has a quarter of float32's
bytes, and a 64th of this quarter. Sources: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (2016);
Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019), algorithm 2.
"""

from __future__ import annotations

import numpy as np

from tfdist.core.wires.format import Format

_BLOCK = 256  # elements that share a scale
_MOST = 127


class Int8Wire:
    """Encoder of one array, used in each step; see ``format.Wire``.

    Args:
      elements: number of elements of the array.

    Attributes:
      lost: float32 [elements], rounding errors of the values or sums that this rank sent last. They are added to the
        next values. They are zero at elements that this rank does not send.
    """

    def __init__(self, elements: int) -> None:
        self.lost = np.zeros(elements, np.float32)

    def size_bytes(self, elements: int) -> int:
        """Return the size of a message of so many elements."""
        return elements + 4 * -(-elements // _BLOCK)

    def encode(self, array: np.ndarray, part: slice) -> np.ndarray:
        """Return a message, uint8, with a part of the array (float32). The array is not changed."""
        elements = part.stop - part.start
        blocks = -(-elements // _BLOCK)
        message = np.empty(self.size_bytes(elements), np.uint8)
        values = np.zeros(blocks * _BLOCK, np.float32)
        np.add(array[part], self.lost[part], out=values[:elements])
        values = values.reshape(blocks, _BLOCK)
        scales = np.maximum(values.max(1), -values.min(1)) / np.float32(_MOST)
        with np.errstate(all="ignore"):
            rounded = np.rint(values * np.where(scales > 0, 1 / scales, 0)[:, None])
            numbers = rounded.astype(np.int8)
            np.subtract(values, numbers * scales[:, None], out=values)
        self.lost[part] = values.reshape(-1)[:elements]
        if not np.isfinite(scales).all():  # such a block is lost once, and its error must not stay
            np.nan_to_num(self.lost[part], copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        message[:elements] = numbers.reshape(-1)[:elements].view(np.uint8)
        message[elements:] = scales.view(np.uint8)
        return message

    def decode(self, message: np.ndarray, out: np.ndarray) -> None:
        """Write the values of a message into an array of its size. A value that is not finite makes its block so."""
        whole = out.size // _BLOCK * _BLOCK
        numbers = message[: out.size].view(np.int8)
        scales = np.frombuffer(message[out.size :].tobytes(), np.float32)
        with np.errstate(all="ignore"):
            blocks = numbers[:whole].reshape(-1, _BLOCK)
            np.multiply(blocks, scales[: len(blocks), None], out=out[:whole].reshape(-1, _BLOCK))
            if whole < out.size:
                np.multiply(numbers[whole:], scales[-1], out=out[whole:])


FORMAT = Format("int8", "float32", Int8Wire)
