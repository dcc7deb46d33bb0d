"""Float32 as int8: blocks with a scale each, and error feedback: what rounding loses is added to the next values.

A message is the int8 numbers of all blocks, and after them a float32 scale for each: a quarter of float32's bytes, and
a 64th of that. Sources: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (2016); Karimireddy et al.,
"Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019), algorithm 2.
"""

from __future__ import annotations

import numpy as np

from tfdist.core.wires.format import Format

_BLOCK = 256  # elements of one scale
_MOST = 127


class Int8Wire:
    """How one array travels, step after step. See ``format.Wire``.

    Args:
      elements: of the array.

    Attributes:
      lost: float32 [elements]: where this rank sends its own values, what was lost of them; where it sends sums, of
        those. It is added to what is sent next; where this rank sends nothing it is zero.
    """

    def __init__(self, elements: int) -> None:
        self.lost = np.zeros(elements, np.float32)

    def size_bytes(self, elements: int) -> int:
        """Of a message of so many elements."""
        return elements + 4 * -(-elements // _BLOCK)

    def encode(self, array: np.ndarray, part: slice) -> np.ndarray:
        """A message, uint8, of a part of the array (float32); the array stays as it is."""
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
        if not np.isfinite(scales).all():  # such a block is lost as a whole, and not for ever
            np.nan_to_num(self.lost[part], copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        message[:elements] = numbers.reshape(-1)[:elements].view(np.uint8)
        message[elements:] = scales.view(np.uint8)
        return message

    def decode(self, message: np.ndarray, out: np.ndarray) -> None:
        """The values of a message into an array of as many elements. One that is not finite makes its block so."""
        whole = out.size // _BLOCK * _BLOCK
        numbers = message[: out.size].view(np.int8)
        scales = np.frombuffer(message[out.size :].tobytes(), np.float32)
        with np.errstate(all="ignore"):
            blocks = numbers[:whole].reshape(-1, _BLOCK)
            np.multiply(blocks, scales[: len(blocks), None], out=out[:whole].reshape(-1, _BLOCK))
            if whole < out.size:
                np.multiply(numbers[whole:], scales[-1], out=out[whole:])


FORMAT = Format("int8", "float32", Int8Wire)
