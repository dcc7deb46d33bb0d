"""Topology: which ranks share a machine's memory, nodes and the lanes between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence


@dataclasses.dataclass(frozen=True)
class Topology:
    """The layout of a job, the same on every rank.

    Attributes:
      nodes: the ranks of each node, ascending; the nodes in the order of their first ranks.
    """

    nodes: tuple[tuple[int, ...], ...]

    @property
    def lanes(self) -> int:
        """Into how many slices a node divides its sums: each slice has one rank on every node that exchanges it."""
        return min(len(node) for node in self.nodes)

    def node_of(self, rank: int) -> tuple[int, ...]:
        """The ranks of the node that a rank belongs to."""
        return next(node for node in self.nodes if rank in node)

    def lane_of(self, rank: int) -> int | None:
        """The slice that a rank adds for its node; None if others of its node do."""
        lane = self.node_of(rank).index(rank)
        return lane if lane < self.lanes else None

    def __str__(self) -> str:
        sizes = [len(node) for node in self.nodes]
        total = sum(sizes)
        if len(sizes) == 1:
            return f"{total} ranks on one node"
        return f"{total} ranks on {len(sizes)} nodes of {', '.join(map(str, sorted(set(sizes))))}"


def layout(machines: Sequence[Hashable], node_size: int = 0) -> Topology:
    """The topology of a job.

    Args:
      machines: for each rank, something that is equal for ranks which can share memory.
      node_size: takes so many ranks of a machine for a node; 0: all of them.
    """
    by_machine: dict[Hashable, list[int]] = {}
    for rank, machine in enumerate(machines):
        by_machine.setdefault(machine, []).append(rank)
    nodes = []
    for ranks in by_machine.values():
        size = node_size or len(ranks)
        nodes += [tuple(ranks[start : start + size]) for start in range(0, len(ranks), size)]
    return Topology(tuple(sorted(nodes)))
