"""Float32 as whole numbers in 8, 4 and 2 bits: the message, and the rounding errors, which later messages repair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfdist.core.wires import FORMATS

BITS = {"int8": 8, "int4": 4, "int2": 2}
BLOCKS = {"int8": 256, "int4": 128, "int2": 256}


def wire_of(name: str, elements: int) -> Any:
    make = FORMATS[name].wire
    assert make is not None
    return make(elements)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("elements", [1, 2, 3, 7, 127, 129, 255, 256, 257, 1000, 4096])
def test_a_message(name: str, elements: int) -> None:
    """Its size, and that it is the nearest number of a block's scale, apart from values above the largest number."""
    array = np.random.RandomState(1).randn(elements + 8).astype(np.float32) * 1e-3
    kept, part = array.copy(), slice(5, 5 + elements)
    wire, out = wire_of(name, array.size), np.empty(elements, np.float32)
    message = wire.encode(array, part)
    wire.decode(message, out)
    size = -(-elements * BITS[name] // 8) + 4 * -(-elements // BLOCKS[name])
    assert message.dtype == np.uint8 and message.size == wire.size_bytes(elements) == size
    np.testing.assert_array_equal(array, kept)
    np.testing.assert_allclose(out + wire.lost[part], array[part], atol=1e-9)
    for start in range(0, elements, BLOCKS[name]):
        block = slice(start, start + BLOCKS[name])
        wanted, found = array[part][block], out[block]
        if name == "int2":
            scale = np.abs(wanted)[np.abs(wanted) > 0.7 * np.abs(wanted).sum() / BLOCKS[name]].mean()
            nearest = np.clip(np.rint(wanted / scale), -1, 1) * scale
            np.testing.assert_allclose(found, nearest, rtol=1e-5)
            assert np.square(found - wanted).sum() < np.square(wanted).sum()
        else:
            most = 2 ** (BITS[name] - 1) - 1
            assert np.abs(found - wanted).max() <= np.abs(wanted).max() / (2 * most) * (1 + 1e-5)


@pytest.mark.parametrize("name", BITS)
def test_each_number_has_its_place_in_a_message(name: str) -> None:
    """Steps of a scale come back exactly, in each place of a byte."""
    most = 2 ** (BITS[name] - 1) - 1
    for shift in range(4):
        values = np.roll(np.tile(np.arange(-most, most + 1, dtype=np.float32), 400)[:1024], shift)
        if name == "int2":
            values = np.where(values == 0, np.float32(1), values)  # the mean of the large values is the scale
        wire, out = wire_of(name, values.size), np.empty(values.size, np.float32)
        wire.decode(wire.encode(values, slice(0, values.size)), out)
        np.testing.assert_allclose(out, values, atol=1e-5)


@pytest.mark.parametrize("name", BITS)
def test_the_sum_of_what_comes_is_that_of_what_was_sent(name: str) -> None:
    """After 100 messages the sums differ by what the last rounding has lost. That does not grow."""
    random = np.random.RandomState(2)
    wire, out = wire_of(name, 700), np.empty(700, np.float32)
    sent, come, losses = np.zeros(700), np.zeros(700), []
    for _ in range(100):
        values = (random.randn(700) * np.exp(random.randn(700))).astype(np.float32)
        wire.decode(wire.encode(values, slice(0, 700)), out)
        sent, come = sent + values, come + out
        losses.append(float(np.abs(wire.lost).max()))
    np.testing.assert_allclose(sent - come, wire.lost, atol=1e-3)
    assert 0 < max(losses[50:]) <= 3 * max(losses[10:50]), losses


@pytest.mark.parametrize("name", BITS)
def test_zeros_and_what_is_not_finite(name: str) -> None:
    wire, out = wire_of(name, 600), np.ones(600, np.float32)
    wire.decode(wire.encode(np.zeros(600, np.float32), slice(0, 600)), out)
    assert not out.any()
    values = np.ones(600, np.float32)
    for bad in (np.inf, np.nan):
        values[300] = bad
        wire.decode(wire.encode(values, slice(0, 600)), out)
        assert not np.isfinite(out[300]) and np.isfinite(out[:256]).all()
    values[300] = 1
    wire.decode(wire.encode(values, slice(0, 600)), out)
    np.testing.assert_allclose(out, 1, atol=1 / 100 if name == "int8" else 1 / 6)
