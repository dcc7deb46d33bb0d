"""Buckets: which tensors share one, its memory, and the pieces into which it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from tfdist.core import alignment
from tfdist.engine import _buffers, _layout
from tfdist.graph import fusing


class TestBuckets:
    def test_order_sizes_and_dtypes(self) -> None:
        sizes = [("float32", 3), ("float64", 1), ("float32", 2), ("float32", 9), ("float32", 1), ("float64", 1)]
        assert fusing.plan(sizes, 6) == [[0], [1, 5], [2], [3], [4]]

    def test_the_first_is_small(self) -> None:
        items = [("float32", 1)] * 12
        assert fusing.plan(items, 8) == [[0], [1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]]

    def test_nothing_is_lost(self) -> None:
        random = np.random.RandomState(0)
        items = [(random.choice(["a", "b"]), int(random.randint(0, 9))) for _ in range(200)]
        plan = fusing.plan(items, 20)
        assert sorted(sum(plan, [])) == list(range(200))
        assert all(len({items[i][0] for i in b}) == 1 for b in plan)
        assert all(len(b) == 1 or sum(items[i][1] for i in b) <= 20 for b in plan)

    def test_parts_are_aligned_and_separate(self) -> None:
        whole, parts = _buffers.Buffers().take([3, 0, 17, 1], np.dtype("float64"))
        assert [p.size for p in parts] == [3, 0, 17, 1]
        assert all(p.ctypes.data % alignment.ALIGNMENT_BYTES == 0 for p in parts if p.size)
        for number, part in enumerate(parts):
            part[:] = number + 1
        assert whole.sum() == 3 * 1 + 17 * 3 + 4

    def test_memory_is_used_again_only_when_nobody_holds_it(self) -> None:
        buffers = _buffers.Buffers()
        whole, parts = buffers.take([100], np.dtype("float32"))
        address = whole.ctypes.data
        del whole, parts
        again, parts = buffers.take([100], np.dtype("float32"))
        assert again.ctypes.data == address
        held = parts[0].reshape(10, 10)[3:]
        del again, parts
        other, _ = buffers.take([100], np.dtype("float32"))
        assert other.ctypes.data != address
        assert held.shape == (7, 10)


class TestPieces:
    @pytest.mark.parametrize(("start", "stop"), [(0, 80), (16, 50), (5, 6), (20, 70), (81, 90)])
    @pytest.mark.parametrize("room", [1, 3, 8, 100])
    def test_a_stretch_of_a_buffer(self, room: int, start: int, stop: int) -> None:
        sizes = [5, 0, 17, 1, 8]
        places = _layout.offsets(sizes, np.dtype(np.float32))
        assert places == [0, 16, 16, 48, 64, 80]
        every = [(t, i, places[t] + i) for t, size in enumerate(sizes) for i in range(size)]
        pieces = _layout.cut(sizes, places[:-1], slice(start, stop), room)
        assert all(piece and piece[-1][2].stop - piece[0][2].start <= room for piece in pieces)
        seen = [
            (tensor, i, place.start + i - part.start)
            for piece in pieces
            for tensor, part, place in piece
            for i in range(part.start, part.stop)
        ]
        assert seen == [e for e in every if start <= e[2] < stop]
