"""Float32 as bfloat16: the range of float32, and 8 bits of precision. Sums are float32 and rounded once."""

from __future__ import annotations

from tfdist.core.wires.format import Format

FORMAT = Format("bf16", "bfloat16")
