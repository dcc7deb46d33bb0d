"""Topology: the nodes, whose ranks share memory, and the shards that ranks exchange between nodes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from fractions import Fraction
from itertools import pairwise


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of each array, which one rank of each node adds for its node and exchanges with the other nodes.

    Attributes:
      start: beginning, as a fraction of the array.
      stop: end, as a fraction of the array.
      ranks: the rank of each node that adds this part, in the order of the nodes.
      number: index among the shards.
    """

    start: Fraction
    stop: Fraction
    ranks: tuple[int, ...]
    number: int


@dataclasses.dataclass(frozen=True)
class Topology:
    """The layout of a job, the same on every rank.

    Attributes:
      nodes: ranks of each node, ascending; the nodes are in the order of their first ranks.
    """

    nodes: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, in their order. Each node divides arrays evenly among its ranks; no node divides a shard."""
        bounds = sorted({Fraction(i, len(node)) for node in self.nodes for i in range(len(node) + 1)})
        return tuple(
            Shard(start, stop, tuple(node[int(start * len(node))] for node in self.nodes), number)
            for number, (start, stop) in enumerate(pairwise(bounds))
        )

    def node_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the node that a rank belongs to."""
        return next(node for node in self.nodes if rank in node)

    def shards_of(self, rank: int) -> tuple[Shard, ...]:
        """Return the shards that a rank adds for its node: one shard if all nodes have the same number of ranks."""
        return tuple(shard for shard in self.shards if rank in shard.ranks)

    def __str__(self) -> str:
        sizes = [len(node) for node in self.nodes]
        total = sum(sizes)
        if len(sizes) == 1:
            return f"{total} rank{'s' * (total > 1)} on one node"
        return f"{total} ranks on {len(sizes)} nodes of {', '.join(map(str, sorted(set(sizes))))}"


def layout(machines: Sequence[Hashable], node_size: int = 0) -> Topology:
    """Return the topology of a job.

    Args:
      machines: for each rank a value that is equal for ranks which can share memory.
      node_size: number of ranks of a machine that form a node; 0: all of them.
    """
    by_machine: dict[Hashable, list[int]] = {}
    for rank, machine in enumerate(machines):
        by_machine.setdefault(machine, []).append(rank)
    nodes = []
    for ranks in by_machine.values():
        size = node_size or len(ranks)
        nodes += [tuple(ranks[start : start + size]) for start in range(0, len(ranks), size)]
    return Topology(tuple(sorted(nodes)))
