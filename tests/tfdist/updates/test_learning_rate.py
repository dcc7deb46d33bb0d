"""Learning rates for the batch of all ranks."""

from __future__ import annotations

import pytest

from tfdist.updates import learning_rate


class TestLearningRate:
    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="'linear', 'sqrt'"):
            learning_rate.scaled(0.1, 2, "cubic", 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="warmup_steps=-1"):
            learning_rate.scaled(0.1, 2, "linear", -1)
