"""Choices from measured times."""

from __future__ import annotations

from tfdist.engine._process_memory_engine import ProcessMemoryEngine
from tfdist.engine._shared_memory_engine import SharedMemoryEngine
from tfdist.engine.autotune import BASE, SIZES_BYTES, Measurement
from tfdist.engine.engines import Choice, Engine


class TestChoice:
    TRIED = ((ProcessMemoryEngine(), 0.3), (SharedMemoryEngine(1 << 20), 0.5), (SharedMemoryEngine(1 << 22), 0.4))

    def test_a_later_engine_must_be_clearly_faster(self) -> None:
        small, large = SharedMemoryEngine(1 << 20), SharedMemoryEngine(1 << 22)
        for seconds, expected in (((0.3, 0.2, 0.16), 0), ((0.3, 0.1, 0.14), 1), ((0.3, 0.14, 0.1), 2)):
            engines: tuple[Engine, ...] = (ProcessMemoryEngine(), small, large)
            tried = tuple(zip(engines, seconds, strict=True))
            assert Measurement(SIZES_BYTES, tried, (), (1.0,) * 6, (0.5,) * 6).choice.engine == tried[expected][0]

    def test_one_outlier_does_not_decide(self) -> None:
        private = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
        own = (2.0, 2.0, 0.5, 0.5, 1.05, 0.5)
        assert Measurement(SIZES_BYTES, self.TRIED, (), private, own).choice == Choice(
            ProcessMemoryEngine(), SIZES_BYTES[2], BASE
        )

    def test_never_faster(self) -> None:
        assert Measurement(SIZES_BYTES, self.TRIED, (), (1.0,) * 6, (2.0,) * 6).choice.crossover_bytes == float("inf")
        assert Measurement(SIZES_BYTES, (), (), (1.0,) * 6, ()).choice.crossover_bytes == float("inf")
