"""The table of formats. A new format is added here."""

from __future__ import annotations

from tfdist.core.wires import bf16, float32, fp16, int2, int4, int8

FORMATS = {module.FORMAT.name: module.FORMAT for module in (float32, bf16, fp16, int8, int4, int2)}
