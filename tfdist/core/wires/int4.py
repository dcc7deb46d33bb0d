"""Float32 as whole numbers from -7 to 7: an eighth of float32's bytes, and a 16th of this eighth for scales."""

from __future__ import annotations

import functools

from tfdist.core.wires.format import Format
from tfdist.core.wires.rounded import Numbers, RoundedWire, of_largest

FORMAT = Format(
    "int4", "float32", functools.partial(RoundedWire, Numbers(4, 7, 128, of_largest(7))), of_gradients=False
)
