"""Float32 as int8: a quarter of float32's bytes, and a 64th of this quarter for scales."""

from __future__ import annotations

import functools

from tfdist.core.wires.format import Format
from tfdist.core.wires.rounded import Numbers, RoundedWire, of_largest

FORMAT = Format("int8", "float32", functools.partial(RoundedWire, Numbers(8, 127, 256, of_largest(127))))
