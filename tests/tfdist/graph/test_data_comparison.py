"""What a rank brings to exchanges has a digest only in the first steps."""

from __future__ import annotations

from unittest import mock

import numpy as np

from tfdist.graph import data_comparison
from tfdist.graph.data_comparison import DataComparison


def test_each_exchange_has_two_digests_in_a_training() -> None:
    """Also if the ranks never compare, as with TFDIST_CHECK=off."""
    gradients, zeros = [np.ones(3)], [np.zeros(3)]
    with mock.patch.object(data_comparison, "checksum", return_value=7) as checksum:
        comparison = DataComparison()
        for _ in range(9):
            comparison.bring("one", zeros)
            comparison.bring("one", gradients)
            comparison.bring("other", gradients)
        assert checksum.call_count == 4
        comparison.begin()
        comparison.bring("one", gradients)
        assert checksum.call_count == 5
