"""tfdist.graph.step_sums: gradients of several steps in one collective, and the steps that run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.multirank import inside
from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.engine.sparse_rows import Rows, SparseMode, Table
from tfdist.graph.job import LastSteps
from tfdist.graph.step_sums import StepSums

F4 = np.dtype(np.float32)


def sums(steps: int, *dtypes: Any) -> StepSums:
    """Return an accumulator with an exchange of one tensor for each dtype."""
    exchanges = [inside.all_reduce(f"bucket {n}", "mean", dtype, (2,)) for n, dtype in enumerate(dtypes)]
    return StepSums("a test", exchanges, steps, inside.job())


def step(one: StepSums, *values: Sequence[float]) -> list[np.ndarray] | None:
    """Add one array to each exchange; return the arrays that this step exchanges, or None if there are none."""
    brought = [one.bring(number, [np.array(value, F4)]) for number, value in enumerate(values)]
    assert all((one.nothing(number) is None) == one.due for number in range(len(values)))
    return [arrays[0] for arrays in brought if arrays is not None] or None


def test_the_mean_of_each_three_steps_is_exchanged() -> None:
    one = sums(3, F4, F4)
    for start in (0.0, 10.0):
        for number in (1, 2):
            assert step(one, [start + number, 0], [number, number]) is None
        first, second = step(one, [start + 3, 3], [3, 6]) or []
        np.testing.assert_allclose(first, [start + 2, 1])
        np.testing.assert_allclose(second, [2, 3])


def test_the_last_steps_of_an_epoch_are_weighted_by_what_they_hold() -> None:
    one, switches = sums(3, F4), inside.job().switches
    assert step(one, [1, 1]) is None
    try:
        switches.last_steps = LastSteps(2)
        assert step(one, [2, 2]) is None
        np.testing.assert_allclose((step(one, [3, 3]) or [])[0], [2, 2])
        switches.last_steps = LastSteps(1)
        np.testing.assert_allclose((step(one, [7, 8]) or [])[0], [7, 8])
        switches.last_steps = None
        assert step(one, [1, 1]) is None
    finally:
        switches.last_steps = None


def test_narrow_gradients_are_added_in_float32_and_rounded_once() -> None:
    one = sums(512, ml_dtypes.bfloat16)
    found = None
    for _ in range(512):  # sums in bfloat16 would stop at 256
        found = step(one, [1.0, 1.0 + 2.0**-7])
    assert found is not None and found[0].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found[0].astype(F4), [1.0, 1.0 + 2.0**-7])
    half = sums(2, np.float16)
    assert step(half, [60000.0, 1.0]) is None
    np.testing.assert_array_equal((step(half, [60000.0, 3.0]) or [])[0], np.array([60000, 2], np.float16))


def test_what_is_returned_in_between_is_zero_and_tensorflow_s_own() -> None:
    one = sums(2, F4)
    step(one, [1, 1])
    first, second = ((one.nothing(0) or [])[0] for _ in range(2))
    assert not np.shares_memory(first, second) and first.ctypes.data % ALIGNMENT_BYTES == 0
    np.testing.assert_array_equal(first, [0, 0])


@pytest.mark.parametrize(("way", "expected"), [("auto", [1, 4, 7]), ("unmerged", [4, 1, 7, 4])])
def test_rows_of_several_steps(way: SparseMode, expected: list[int]) -> None:
    one = StepSums("a test", [Rows("rows", [Table("e", 9, way, np.dtype(np.int64), F4, (2,))])], 2, inside.job())
    assert one.bring(0, [np.array([4, 1]), np.ones([2, 2], F4)]) is None
    assert [a.shape for a in one.nothing(0) or []] == [(0,), (0, 2)]
    indices, values = one.bring(0, [np.array([7, 4]), np.full([2, 2], 3, F4)]) or []
    np.testing.assert_array_equal(indices, expected)
    total = np.zeros([9, 2])
    np.add.at(total, indices, values)
    np.testing.assert_allclose(total[[1, 4, 7]], np.array([[0.5] * 2, [2.0] * 2, [1.5] * 2]))


def test_a_step_that_was_given_up_halfway_is_told() -> None:
    one = sums(3, F4, F4)
    step(one, [1, 1], [1, 1])
    one.bring(0, [np.ones(2, F4)])
    with pytest.raises(RuntimeError, match="a test: step 2 of 3 .* was given up halfway"):
        one.bring(0, [np.ones(2, F4)])


def test_shapes_that_change_are_told() -> None:
    one = sums(3, F4)
    step(one, [1, 1])
    with pytest.raises(ValueError, match=r"\(2,\).* are followed by shapes \[\(3,\)\]"):
        step(one, [1, 1, 1])
