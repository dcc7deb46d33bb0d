"""Float32 without a conversion."""

from __future__ import annotations

from tfdist.core.wires.format import Format

FORMAT = Format("none", "float32")
