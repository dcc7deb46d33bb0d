"""How long a data-parallel step takes: a model of few parameters, each with a meaning and a measurement of its own.

Between GPUs (``Cluster``), for ``simulate_scaling``. All ranks stand on one ring, through every node once, on
which each link carries 2 (n - 1) / n times the gradients' bytes B (Patarasuk, Yuan, "Bandwidth Optimal All-reduce
Algorithms for Clusters of Workstations", 2009), and the slowest link sets the pace:

    exchange(n) = 2 (n - 1) / n * B * (staging + 1 / link(n)) + 2 ceil(log2 n) * latency

- compute, a step of one rank: from the step of 1 rank;
- staging, seconds a byte at each rank beside the links (copies, additions): from the step of some ranks of a node;
- efficiency, the share of the network's nominal rate that is reached: from the step of several nodes, whose link it is;
- bandwidths, latency and ranks a node: nominal.

With as many measured steps as parameters nothing is left to tune. In one piece the exchange follows the backward pass;
in buckets each begins when its gradients are there, evenly over the backward pass, and the one before it has travelled.
Rows of embedding tables go to everybody, (n - 1) times those of one rank, where that is less than the dense tables.

On one machine whose ranks are processes on its cores (``Machine``) the gradients go through memory, which all ranks
share, and nothing hides behind computation where all cores compute:

    step(n) = compute(n) + n / cores * floor        for n > 1

- alone, beside: a step of one process alone, and of each when every core has one: from independent processes, which
  exchange nothing;
- floor, 2.5 copies of the gradients (into shared memory, a sum, and out): from copies while every core copies.

compute(n) goes from alone to beside with the cores that are busy, and beyond the cores grows with n / cores. No step of
ranks goes into it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass


def ring_bytes(size: float, ranks: int) -> float:
    """What each link carries of an all-reduce of so many bytes."""
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
        """On the slowest link of a ring of so many ranks, and at its ends."""
        several = ranks > self.ranks_per_node
        return self.staging + 1 / (self.efficiency * self.network_bandwidth if several else self.local_bandwidth)

    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds of the exchange of so many bytes."""
        latency = 2 * math.ceil(math.log2(ranks)) * self.latency
        return ring_bytes(size, ranks) * self.seconds_a_byte(ranks) + latency

    def all_gather(self, size: float, ranks: int) -> float:
        """Seconds until each rank has the so many bytes of each other one."""
        return (ranks - 1) * size * self.seconds_a_byte(ranks) + math.ceil(math.log2(ranks)) * self.latency


# IBM's DDL on the NMT tutorial: 717 MB of gradients, 4 GPUs a node, 150 GB/s in it and 100 Gbit/s between nodes.
ARTICLE = Cluster(ranks_per_node=4, local_bandwidth=150e9, network_bandwidth=100e9 / 8)
ARTICLE_BYTES = 717e6
ARTICLE_MS = {1: 360.0, 2: 450.0, 4: 560.0, 8: 680.0, 12: 690.0, 16: 700.0}  # a step, by GPUs
ARTICLE_FITTED = (1, 2, 8)


@dataclass(frozen=True)
class Job:
    """What a rank computes and sends in a step.

    Attributes:
      compute: seconds.
      gradients: bytes in float32, tables included.
      tables: bytes of the dense gradients of embedding tables, among these.
      touched: the share of the tables' rows that one rank's batch touches.
      rows: whether rows travel where that is less.
      wire: bytes on the wire for a byte of float32: 0.5 for bf16.
      bucket: bytes of a bucket of float32; 0: one exchange after the backward pass.
      backward: the backward pass's share of the computation: two of three matrix products.
    """

    compute: float
    gradients: float
    tables: float = 0.0
    touched: float = 1.0
    rows: bool = False
    wire: float = 1.0
    bucket: float = 0.0
    backward: float = 2 / 3

    def seconds(self, cluster: Cluster, ranks: int) -> float:
        """A step of so many ranks, each with its own batch."""
        if ranks == 1:
            return self.compute
        own_rows = self.touched * self.tables * self.wire
        dense, gathered = self.gradients * self.wire, 0.0
        if self.rows and (ranks - 1) * own_rows < ring_bytes(self.tables * self.wire, ranks):
            dense, gathered = dense - self.tables * self.wire, cluster.all_gather(own_rows, ranks)
        pieces = math.ceil(dense / (self.bucket * self.wire)) if self.bucket else 1
        done = 0.0
        for piece in range(pieces):
            ready = self.compute * (1 - self.backward * (1 - (piece + 1) / pieces))
            done = max(done, ready) + cluster.all_reduce(dense / pieces, ranks)
        return max(done, self.compute) + gathered

    def block_seconds(self, cluster: Cluster, ranks: int, block_steps: int) -> float:
        """A step with block synchronisation: one exchange of all parameters for so many steps."""
        if ranks == 1:
            return self.compute
        return self.compute + cluster.all_reduce(self.gradients * self.wire, ranks) / block_steps


def fitted(cluster: Cluster, gradients: float, seconds: Mapping[int, float]) -> tuple[Cluster, Job]:
    """The model that goes through three measured steps.

    Args:
      cluster: nominal.
      gradients: bytes.
      seconds: by ranks: of one, of some of one node, and of several nodes.

    Raises:
      ValueError: other steps, or steps that the links' nominal rates cannot explain.
    """
    ranks = sorted(seconds)
    if len(ranks) != 3 or ranks[0] != 1 or not 1 < ranks[1] <= cluster.ranks_per_node < ranks[2]:
        raise ValueError(
            f"steps of {ranks} ranks: it takes 1, one number up to {cluster.ranks_per_node} (a node), and one above"
        )
    compute = seconds[1]

    def per_byte(n: int) -> float:
        latency = cluster.all_reduce(0.0, n)
        return (seconds[n] - compute - latency) / ring_bytes(gradients, n)

    staging = per_byte(ranks[1]) - 1 / cluster.local_bandwidth
    network = per_byte(ranks[2]) - staging
    if staging < 0 or network * cluster.network_bandwidth < 1:
        raise ValueError("the steps are shorter than the links' nominal rates allow")
    efficiency = 1 / (network * cluster.network_bandwidth)
    return dataclasses.replace(cluster, staging=staging, efficiency=efficiency), Job(compute, gradients)


@dataclass(frozen=True)
class Machine:
    """Ranks that are processes of one machine, on its cores; seconds."""

    cores: int
    alone: float
    beside: float
    floor: float

    def seconds(self, ranks: int) -> float:
        """A step of so many ranks."""
        busy = min(ranks, self.cores)
        share = (busy - 1) / (self.cores - 1) if self.cores > 1 else 1.0
        compute = (self.alone + (self.beside - self.alone) * share) * max(1.0, ranks / self.cores)
        return compute + (ranks / self.cores * self.floor if ranks > 1 else 0.0)
