"""Float32 as int8: the message, and the rounding errors, which later messages repair."""

from __future__ import annotations

import numpy as np
import pytest

from tfdist.core.wires.int8 import Int8Wire


@pytest.mark.parametrize("elements", [1, 7, 255, 256, 257, 1000, 4096])
def test_a_message(elements: int) -> None:
    array = np.random.RandomState(1).randn(elements + 8).astype(np.float32) * 1e-3
    kept, part = array.copy(), slice(5, 5 + elements)
    wire, out = Int8Wire(array.size), np.empty(elements, np.float32)
    message = wire.encode(array, part)
    wire.decode(message, out)
    assert message.dtype == np.uint8 and message.size == wire.size_bytes(elements) <= elements + elements / 64 + 4
    np.testing.assert_array_equal(array, kept)
    for start in range(0, elements, 256):
        block = slice(start, start + 256)
        wanted = array[part][block]
        assert np.abs(out[block] - wanted).max() <= np.abs(wanted).max() / 254 * (1 + 1e-5)


def test_the_sum_of_what_comes_is_that_of_what_was_sent() -> None:
    random = np.random.RandomState(2)
    wire, out = Int8Wire(700), np.empty(700, np.float32)
    sent, come, most = np.zeros(700), np.zeros(700), 0.0
    for _ in range(100):
        values = (random.randn(700) * np.exp(3 * random.randn(700))).astype(np.float32)
        wire.decode(wire.encode(values, slice(0, 700)), out)
        sent, come = sent + values, come + out
        most = max(most, float(np.abs(values).max()))
    assert 0 < np.abs(sent - come).max() <= 1.01 * most / 254


def test_zeros_and_what_is_not_finite() -> None:
    wire, out = Int8Wire(600), np.ones(600, np.float32)
    wire.decode(wire.encode(np.zeros(600, np.float32), slice(0, 600)), out)
    assert not out.any()
    values = np.ones(600, np.float32)
    for bad in (np.inf, np.nan):
        values[300] = bad
        wire.decode(wire.encode(values, slice(0, 600)), out)
        assert not np.isfinite(out[300]) and np.isfinite(out[:256]).all()
    values[300] = 1
    wire.decode(wire.encode(values, slice(0, 600)), out)
    np.testing.assert_allclose(out, 1, atol=1 / 100)
