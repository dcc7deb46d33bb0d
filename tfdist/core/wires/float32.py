"""Float32 as it is."""

from __future__ import annotations

from tfdist.core.wires.format import Format

FORMAT = Format("none", "float32")
