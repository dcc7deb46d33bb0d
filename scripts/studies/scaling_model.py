"""Scaling model: predicts the time of a data-parallel step, with few parameters that are measured or nominal.

``Cluster`` models GPUs on nodes, for ``simulate_scaling``. All ranks are on one ring that passes each node once. Each
link carries 2 (n - 1) / n times the gradients' bytes B (Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for
Clusters of Workstations", 2009). The slowest link limits the exchange:

    exchange(n) = 2 (n - 1) / n * B * (staging + 1 / link(n)) + 2 ceil(log2 n) * latency

- compute: seconds of a step of one rank, from the step of 1 rank.
- staging: seconds a byte at each rank for copies and additions, without the links, from a step of ranks of one node.
- efficiency: share of the network's nominal rate that is reached, from a step of several nodes.
- bandwidths, latency and ranks per node: nominal values.

There are as many measured steps as parameters, so that no parameter is free. An exchange in one piece follows the
backward pass, which makes gradients at an even rate. A bucket's exchange begins when its gradients are ready and the
bucket before it has been exchanged. All ranks gather the rows of embedding tables if these are fewer bytes than the
dense tables: (n - 1) times the rows of one rank.

``Machine`` models ranks that are processes on the cores of one machine. The gradients go through shared memory. When
all cores compute, computation cannot hide the exchange:

    step(n) = compute(n) + n / cores * floor        for n > 1

- ``alone``: seconds of a step of one process alone.
- ``beside``: seconds of a step when each core has a process; both are from independent processes without an exchange.
- floor: 2.5 copies of the gradients (into shared memory, a sum, and out), from copies while every core copies.

compute(n) rises from ``alone`` to ``beside`` with the number of busy cores, and beyond them with n / cores. It needs no
measured step of ranks.
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
        """Return the seconds of an all-reduce of ``size`` bytes."""
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


@dataclass(frozen=True)
class LocalSteps:
    """Blocks of local steps: how the ranks exchange what a block has changed.

    Attributes:
      steps: steps of a block.
      bits: bits of a number; below 16 also a float32 scale for each 256 numbers.
      fragments: parts of the variables, each with its own exchange in a block.
      delay: steps that compute while an exchange is under way.
    """

    steps: int
    bits: float = 32
    fragments: int = 1
    delay: int = 0

    @property
    def wire(self) -> float:
        """Bytes sent for a byte of float32."""
        return (self.bits + (32 / 256 if self.bits < 16 else 0)) / 32


@dataclass(frozen=True)
class Job:
    """A rank's computation and gradients in a step.

    Attributes:
      compute: seconds of computation.
      gradients: bytes of all gradients in float32, tables included.
      tables: bytes of the embedding tables' dense gradients.
      touched: share of the tables' rows that one rank's batch touches.
      rows: whether ranks gather rows if these are fewer bytes than dense tables.
      wire: bytes sent for a byte of float32: 0.5 for bf16.
      bucket: bytes of a bucket in float32; 0 for one exchange after the backward pass.
      backward: backward pass's share of the computation: two of three matrix products.
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
        """Return the seconds of a step of ``ranks`` ranks, each with its own batch."""
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

    def local_seconds(self, cluster: Cluster, ranks: int, local: LocalSteps) -> float:
        """Return the mean seconds of a step, with an exchange of all parameters in each block.

        The steps of the delay hide an exchange. If the exchanges of a block take longer than its steps, they decide.
        """
        if ranks == 1:
            return self.compute
        one = cluster.all_reduce(self.gradients * local.wire / local.fragments, ranks)
        waits = local.fragments * max(0.0, one - local.delay * self.compute)
        return max(self.compute + waits / local.steps, local.fragments * one / local.steps)


def fitted(cluster: Cluster, gradients: float, seconds: Mapping[int, float]) -> tuple[Cluster, Job]:
    """Return the model that fits three measured steps exactly.

    Args:
      cluster: cluster with nominal values.
      gradients: bytes of the gradients.
      seconds: seconds of a step, by number of ranks: one rank, several ranks of one node, and ranks of several nodes.

    Raises:
      ValueError: the numbers of ranks are others, or the steps are too short for the links' nominal rates.
    """
    ranks = sorted(seconds)
    if len(ranks) != 3 or ranks[0] != 1 or not 1 < ranks[1] <= cluster.ranks_per_node < ranks[2]:
        raise ValueError(
            f"steps of {ranks} ranks: give steps of 1 rank, of up to {cluster.ranks_per_node} (one node), and of more"
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
    """Ranks that are processes on the cores of one machine; times in seconds."""

    cores: int
    alone: float
    beside: float
    floor: float

    def seconds(self, ranks: int) -> float:
        """Return the seconds of a step of ``ranks`` ranks."""
        busy = min(ranks, self.cores)
        share = (busy - 1) / (self.cores - 1) if self.cores > 1 else 1.0
        compute = (self.alone + (self.beside - self.alone) * share) * max(1.0, ranks / self.cores)
        return compute + (ranks / self.cores * self.floor if ranks > 1 else 0.0)
