"""What is chosen from measured times."""

from __future__ import annotations

from tfdist.job import Tuning
from tfdist.tuning import SIZES_BYTES, Measurement


class TestTuning:
    WAYS = ((Tuning(0, 1 << 20), 0.5), (Tuning(0, 0), 0.3), (Tuning(0, 1 << 22), 0.4))

    def test_one_outlier_does_not_decide(self) -> None:
        private = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
        own = (2.0, 2.0, 0.5, 0.5, 1.05, 0.5)
        assert Measurement(self.WAYS, private, own).tuning == Tuning(SIZES_BYTES[2], 0)

    def test_never_faster(self) -> None:
        assert Measurement(self.WAYS, (1.0,) * 6, (2.0,) * 6).tuning.crossover_bytes == float("inf")
        assert Measurement((), (1.0,) * 6, ()).tuning.crossover_bytes == float("inf")
