"""Element-wise reduction of arrays: in blocks, in place, in a wider dtype, one slice for each rank."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op


class TestSlices:
    @pytest.mark.parametrize("elements", [0, 1, 15, 16, 17, 1000])
    @pytest.mark.parametrize("parts", [1, 2, 3, 7])
    def test_slices_cover_all_and_begin_on_cache_lines(self, elements: int, parts: int) -> None:
        cut = reduce_ops.slices(elements, parts, 4)
        assert len(cut) == parts and cut[0].start == 0 and cut[-1].stop == elements
        assert all(a.stop == b.start and (b.start % 16 == 0 or b.start == elements) for a, b in itertools.pairwise(cut))


class TestCombining:
    def test_blocks_are_invisible(self) -> None:
        values = [np.random.RandomState(r).randn(200_003).astype(np.float32) for r in range(3)]
        out = np.empty_like(values[0])
        reduce_ops.combine("mean", values, out, 3)
        np.testing.assert_array_equal(out, ((values[0] + values[1]) + values[2]) / np.float32(3))

    @pytest.mark.parametrize("place", [0, 1])
    def test_in_the_place_of_one_of_the_first_two(self, place: int) -> None:
        values = [np.random.RandomState(r).randn(100_003).astype(np.float32) for r in range(3)]
        expected = ((values[0] + values[1]) + values[2]) / np.float32(3)
        reduce_ops.combine("mean", values, values[place], 3)
        np.testing.assert_array_equal(values[place], expected)

    def test_float16_is_added_in_float32(self) -> None:
        values = [np.full(5, x, np.float16) for x in (2048, 1, 1)]  # in float16, 2048 + 1 is 2048
        out = np.empty_like(values[0])
        reduce_ops.combine("sum", values, out)
        assert (out == 2050).all()

    @pytest.mark.parametrize(("op", "dtype", "expected"), [("sum", "i4", 0), ("min", "f4", np.inf), ("max", "u1", 0)])
    def test_nobody_contributes(self, op: Op, dtype: str, expected: float) -> None:
        out = np.full(3, 7, dtype)
        reduce_ops.combine(op, [], out)
        assert (out == expected).all()
