"""Shared memory, with threads as ranks."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

from tfdist.mpi._barrier import ROW_BYTES, Barrier


class TestLines:
    @pytest.mark.parametrize("ranks", [2, 3, 4])
    def test_everybody_reads_what_everybody_brought_in_the_same_turn(self, ranks: int) -> None:
        memory = [np.zeros(1024, np.uint8) for _ in range(ranks)]
        wrong: list[str] = []

        def run(rank: int) -> None:
            barrier = Barrier([m[: 2 * ROW_BYTES] for m in memory], rank, lambda: None)
            delays = random.Random(rank)
            for turn in range(300):
                barrier.enter([turn, rank])
                while not barrier.Test():
                    time.sleep(0)
                expected = [[turn, r] for r in range(ranks)]
                if barrier.read(2) != expected:
                    wrong.append(f"rank {rank}, turn {turn}: {barrier.read(2)}")
                if delays.random() < 0.05:
                    time.sleep(0.001)

        threads = [threading.Thread(target=run, args=[rank], daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
