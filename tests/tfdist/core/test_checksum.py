"""Which sequences of arrays have the same checksum."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tfdist.core.checksum import checksum


class TestChecksum:
    def test_the_same_values(self) -> None:
        array = np.arange(24.0).reshape(4, 6)
        assert checksum([array]) == checksum([array.copy()]) == checksum([np.asfortranarray(array)])
        assert checksum([np.array(["a", "bc"], object)]) == checksum([np.array(["a", "bc"], object)])

    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
    def test_the_order_of_the_values_counts(self, dtype: Any) -> None:
        found = [checksum([np.roll(np.eye(1, 32, dtype=dtype), n)]) for n in range(32)]
        assert len(set(found)) == 32

    def test_every_value_counts(self) -> None:
        arrays: list[Any] = [np.zeros(4), np.array([0, 0, 0, -0.0]), np.array([-0.0, -0.0, 0, 0]), np.zeros(5), []]
        arrays += [np.array(["a", "b"], object), np.array(["a", "c"], object), np.array(["ab"]), np.float32(3)]
        for one, other in itertools.combinations(arrays, 2):
            assert checksum([one]) != checksum([other]), (one, other)

    def test_the_start_counts_and_the_range_is_kept(self) -> None:
        random = np.random.default_rng(0)
        found = [checksum([random.random(100)], start) for start in range(1000)] + [checksum([])]
        assert len(set(found)) == 1001 and min(found) > 0 and max(found) < 2**60
