"""Which ranks share a node."""

from __future__ import annotations

from tfdist.core.topology import Topology, layout


class TestTopology:
    def test_forced_nodes(self) -> None:
        topology = layout(["a", "a", "b", "a", "b", "a"], node_size=2)
        assert topology.nodes == ((0, 1), (2, 4), (3, 5))
        assert topology.lanes == 2
        assert [topology.lane_of(r) for r in range(6)] == [0, 1, 0, 0, 1, 1]

    def test_nodes_of_different_sizes(self) -> None:
        topology = layout(["a", "a", "a", "b"])
        assert (topology.lanes, [topology.lane_of(r) for r in range(4)]) == (1, [0, None, None, 0])
        assert str(topology) == "4 ranks on 2 nodes of 1, 3"
        assert str(Topology(((0, 1),))) == "2 ranks on one node"
