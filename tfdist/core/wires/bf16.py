"""Float32 as bfloat16: its range, and 8 bits of precision; added in float32, rounded once."""

from __future__ import annotations

from tfdist.core.wires.format import Format

FORMAT = Format("bf16", "bfloat16")
