"""Learning rates for the batch of all ranks."""

from __future__ import annotations

import pytest

import tfdist


def test_refusals() -> None:
    with pytest.raises(ValueError, match="'linear', 'sqrt'"):
        tfdist.scale_learning_rate(0.1, "cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="warmup_steps=-1"):
        tfdist.scale_learning_rate(0.1, warmup_steps=-1)
