"""How much memory the other ranks' contributions take."""

from __future__ import annotations

from tfdist.engine._process_memory_engine import block_bytes


def test_a_machine_of_many_ranks_has_small_blocks() -> None:
    assert block_bytes(0) == block_bytes(1) == block_bytes(8) == 1 << 19
    for ranks in (16, 100, 128, 250):
        assert block_bytes(ranks) * ranks <= 1 << 22 and block_bytes(ranks) % 64 == 0
    assert block_bytes(4096) == 1 << 14
