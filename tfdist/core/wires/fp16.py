"""Float32 as float16: up to 65504, and 11 bits of precision. Sums are float32 and rounded once."""

from __future__ import annotations

from tfdist.core.wires.format import Format

FORMAT = Format("fp16", "float16")
