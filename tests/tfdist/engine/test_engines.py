"""Memory on the node that engines need from a channel."""

from __future__ import annotations

import math

from tfdist.engine._mpi_engine import MpiEngine
from tfdist.engine._process_memory_engine import ProcessMemoryEngine
from tfdist.engine._shared_memory_engine import SharedMemoryEngine
from tfdist.engine._small_buckets import for_small_buckets
from tfdist.engine.engines import Choice
from tfdist.transport.interfaces import NodeMemory


def test_rows_need_addresses_where_memory_is_reached_and_no_staging() -> None:
    small = for_small_buckets(2, between_machines=False)
    direct, shared = ProcessMemoryEngine(), SharedMemoryEngine(1 << 20)
    assert Choice(direct, 0, MpiEngine(), small).needs(0, 6) == NodeMemory(0, 6)
    assert Choice(direct, math.inf, MpiEngine(), small).needs(0, 6) is None
    assert Choice(shared, 0, MpiEngine(), small).needs(0, 6) is None
    assert Choice(shared, 0, MpiEngine()).needs(4, 6) == NodeMemory(1 << 20, 0)
    assert Choice(direct, 0, MpiEngine()).needs(4, 3) == NodeMemory(0, 4, 6)
    assert Choice(direct, 0, MpiEngine()).needs(4, 6) == NodeMemory(0, 6, 6)
    assert Choice(direct, 0, MpiEngine()).needs(0) is None
