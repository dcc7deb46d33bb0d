"""Topology: which ranks share a machine's memory, nodes and the shards between them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from fractions import Fraction
from itertools import pairwise


@dataclasses.dataclass(frozen=True)
class Shard:
    """A stretch of what is added, which one rank of each node adds there and exchanges with the others'.

    Attributes:
      start: where it begins, of 1.
      stop: where it ends.
      ranks: the one of each node, in the order of the nodes.
      number: among the shards.
    """

    start: Fraction
    stop: Fraction
    ranks: tuple[int, ...]
    number: int


@dataclasses.dataclass(frozen=True)
class Topology:
    """The layout of a job, the same on every rank.

    Attributes:
      nodes: the ranks of each node, ascending; the nodes in the order of their first ranks.
    """

    nodes: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Each node divides its sums evenly between its ranks: the stretches that no node divides, in their order."""
        bounds = sorted({Fraction(i, len(node)) for node in self.nodes for i in range(len(node) + 1)})
        return tuple(
            Shard(start, stop, tuple(node[int(start * len(node))] for node in self.nodes), number)
            for number, (start, stop) in enumerate(pairwise(bounds))
        )

    def node_of(self, rank: int) -> tuple[int, ...]:
        """The ranks of the node that a rank belongs to."""
        return next(node for node in self.nodes if rank in node)

    def shards_of(self, rank: int) -> tuple[Shard, ...]:
        """What a rank adds for its node: one stretch where all nodes have as many ranks."""
        return tuple(shard for shard in self.shards if rank in shard.ranks)

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
