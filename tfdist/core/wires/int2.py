"""Float32 as -1, 0 or 1 in two bits: a 16th of float32's bytes, and a 16th of this 16th for scales.

A block's scale is the mean of its large values: F. Li, B. Liu, "Ternary Weight Networks" (2016, arXiv 1605.04711),
equations 5 and 6. Such a message is never farther from the values than a message of zeros. So error feedback converges.
"""

from __future__ import annotations

import functools

import numpy as np

from tfdist.core.wires.format import Format
from tfdist.core.wires.rounded import Numbers, RoundedWire

_LARGE = np.float32(0.7)  # times the mean of the absolute values


def _means_of_large(values: np.ndarray) -> np.ndarray:
    sizes = np.abs(values)
    means = sizes.mean(1)
    large = sizes > _LARGE * means[:, None]
    sums = np.where(large, sizes, np.float32(0)).sum(1) + 0 * means  # NaN if a value is not finite
    found: np.ndarray = sums / np.maximum(large.sum(1), 1).astype(np.float32)
    return found


FORMAT = Format("int2", "float32", functools.partial(RoundedWire, Numbers(2, 1, 256, _means_of_large)), False)
