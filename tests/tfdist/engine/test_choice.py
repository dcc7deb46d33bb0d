"""Which engine takes which bucket: a rule of its size, and of what the ranks can share."""

from __future__ import annotations

import numpy as np
import pytest

from tfdist.core.settings import Settings
from tfdist.core.topology import Topology
from tfdist.engine.choice import Engines
from tfdist.engine.engines import Bucket
from tfdist.transport.one_process import OneProcess

KIB = 1 << 10


class Two(OneProcess):
    """Two ranks on the hosts of a topology; their settings are the same."""

    size = 2

    def __init__(self, topology: Topology, obstacle: str) -> None:
        super().__init__()
        self.topology, self._obstacle = topology, obstacle

    def mapped_memory_obstacle(self) -> str:
        return self._obstacle


HERE, APART = Topology(((0, 1),)), Topology(((0,), (1,)))


@pytest.mark.parametrize(
    ("topology", "obstacle", "engine", "small", "large"),
    [
        (HERE, "", "auto", True, True),
        (HERE, "", "nccl", True, True),  # what NCCL does not take
        (HERE, "", "mpi", False, False),
        (HERE, "refused", "auto", True, False),
        (APART, "no two ranks share a machine", "auto", True, False),
    ],
)
def test_the_engines_of_a_job(topology: Topology, obstacle: str, engine: str, small: bool, large: bool) -> None:
    chosen = Engines(Two(topology, obstacle), lambda: Settings(engine=engine)).choose()
    assert (chosen.small is not None, chosen.large is not None) == (small, large)
    world = OneProcess()  # its channel has no memory of a node: messages take all buckets
    for kib in (1, 1000):
        bucket = Bucket("a bucket", "mean", np.dtype(np.float32), (kib * KIB // 4,))
        assert str(chosen.open(bucket, world.channel("a test"), shares_memory=True)[0]) == "through MPI"
