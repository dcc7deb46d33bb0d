"""Which ranks share a node."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest

from tfdist.core.topology import Topology, layout


class TestTopology:
    def test_forced_nodes(self) -> None:
        topology = layout(["a", "a", "b", "a", "b", "a"], node_size=2)
        assert topology.nodes == ((0, 1), (2, 4), (3, 5))
        assert [shard.ranks for shard in topology.shards] == [(0, 2, 3), (1, 4, 5)]
        assert [topology.shards.index(topology.shards_of(r)[0]) for r in range(6)] == [0, 1, 0, 0, 1, 1]

    def test_nodes_of_different_sizes(self) -> None:
        topology = layout(["a", "a", "a", "b"])
        assert [shard.ranks for shard in topology.shards] == [(0, 3), (1, 3), (2, 3)]
        assert str(topology) == "4 ranks on 2 nodes of 1, 3"
        assert str(Topology(((0, 1),))) == "2 ranks on one node"

    @pytest.mark.parametrize("sizes", [(3, 2), (1, 4), (8, 7, 5), (2, 2, 3, 1)])
    def test_no_rank_of_a_node_adds_more_than_another(self, sizes: tuple[int, ...]) -> None:
        topology = layout([machine for machine, size in enumerate(sizes) for _ in range(size)])
        for node in topology.nodes:
            end = Fraction(0)
            for rank in node:
                shards = topology.shards_of(rank)
                assert shards[0].start == end
                assert all(a.stop == b.start for a, b in pairwise(shards))
                end = shards[-1].stop
                assert end - shards[0].start == Fraction(1, len(node))
            assert end == 1
        assert all(len({topology.node_of(r) for r in shard.ranks}) == len(sizes) for shard in topology.shards)
