"""Scaling model: predicts the time of a data-parallel step on a cluster from three measured steps, for the figures.

All ranks are on one ring that passes each node once. Each link carries 2 (n - 1) / n times the gradients' bytes B
(Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009). The slowest link limits
the exchange, which follows the backward pass:

    exchange(n) = 2 (n - 1) / n * B * (staging + 1 / link(n)) + 2 ceil(log2 n) * latency

- compute: seconds of a step of one rank, from the step of 1 rank.
- staging: seconds a byte at each rank for copies and additions, without the links, from a step of ranks of one node.
- efficiency: share of the network's nominal rate that is reached, from a step of several nodes.
- bandwidths, latency and ranks per node: nominal values.

There are as many measured steps as parameters, so that no parameter is free.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass


def ring_bytes(size: float, ranks: int) -> float:
    """Return the bytes that each link carries in an all-reduce of ``size`` bytes."""
    return 2 * (ranks - 1) / ranks * size


@dataclass(frozen=True)
class Cluster:
    """Ranks with a GPU each, on nodes with links between them; bytes and seconds."""

    ranks_per_node: int
    local_bandwidth: float
    network_bandwidth: float
    latency: float = 5e-6
    staging: float = 0.0
    efficiency: float = 1.0

    def seconds_a_byte(self, ranks: int) -> float:
        """Return the seconds a byte on a ring's slowest link, with staging."""
        several = ranks > self.ranks_per_node
        return self.staging + 1 / (self.efficiency * self.network_bandwidth if several else self.local_bandwidth)

    def all_reduce(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-reduce of ``size`` bytes; none for one rank."""
        latency = 2 * math.ceil(math.log2(ranks)) * self.latency
        return ring_bytes(size, ranks) * self.seconds_a_byte(ranks) + latency

    def all_gather(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-gather of ``size`` bytes of each rank."""
        return (ranks - 1) * size * self.seconds_a_byte(ranks) + math.ceil(math.log2(ranks)) * self.latency


# IBM's DDL on the NMT tutorial: 717 MB of gradients, 4 GPUs a node, 150 GB/s in a node and 100 Gbit/s between nodes.
ARTICLE = Cluster(ranks_per_node=4, local_bandwidth=150e9, network_bandwidth=100e9 / 8)
ARTICLE_BYTES = 717e6
ARTICLE_MS = {1: 360.0, 2: 450.0, 4: 560.0, 8: 680.0, 12: 690.0, 16: 700.0}  # milliseconds of a step, by GPUs
ARTICLE_FITTED = (1, 2, 8)


def fitted(cluster: Cluster, gradients: float, seconds: Mapping[int, float]) -> Cluster:
    """Return the cluster whose steps are the three measured ones.

    Args:
      cluster: cluster with nominal values.
      gradients: bytes of the gradients.
      seconds: seconds of a step, by number of ranks: one rank, several ranks of one node, and ranks of several nodes.
    """
    one, few, many = sorted(seconds)

    def per_byte(n: int) -> float:
        return (seconds[n] - seconds[one] - cluster.all_reduce(0.0, n)) / ring_bytes(gradients, n)

    staging = per_byte(few) - 1 / cluster.local_bandwidth
    efficiency = 1 / ((per_byte(many) - staging) * cluster.network_bandwidth)
    return dataclasses.replace(cluster, staging=staging, efficiency=efficiency)
