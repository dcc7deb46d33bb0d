"""Wires: the ways in which float32 values travel, by their names in ``TFDIST_COMPRESSION``. Sums are float32."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from tfdist.core.rounded_wire import Numbers, Wire, of_largest, of_mean


@dataclasses.dataclass(frozen=True)
class Format:
    """A way in which float32 values travel.

    Attributes:
      name: value of the setting.
      dtype: name of the dtype of the values in an exchange; sums are float32 if it is narrower.
      wire: function (number of elements) -> encoder of an array between machines; None: no encoding.
      of_gradients: True if gradients may travel in it; else only what blocks of local steps have changed.
    """

    name: str
    dtype: str
    wire: Callable[[int], Wire] | None = None
    of_gradients: bool = True


def _rounded(bits: int, most: int, block: int, scales: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], Wire]:
    return functools.partial(Wire, Numbers(bits, most, block, scales))


PLAIN = Format("none", "float32")
_ALL = (
    PLAIN,
    Format("bf16", "bfloat16"),  # the range of float32, and 8 bits of precision
    Format("fp16", "float16"),  # up to 65504, and 11 bits of precision
    Format("int8", "float32", _rounded(8, 127, 256, of_largest(127))),  # a quarter of the bytes, and 1/64 for scales
    Format("int4", "float32", _rounded(4, 7, 128, of_largest(7)), of_gradients=False),
    Format("int2", "float32", _rounded(2, 1, 256, of_mean), of_gradients=False),  # -1, 0 or 1
)
FORMATS = {one.name: one for one in _ALL}
