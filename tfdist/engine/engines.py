"""Engine: one way to add arrays of all ranks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from tfdist.core.flight_recorder import Span
from tfdist.core.reduce_ops import Op
from tfdist.core.wires import PLAIN, Format, Wire
from tfdist.engine._buffers import Allocate
from tfdist.engine._layout import Piece
from tfdist.transport.interfaces import Channel, Chunking, NodeMemory


class AllReduceContext(Protocol):
    """The part of ``exchange.ExchangeContext`` that an engine needs.

    Attributes:
      span: records a span for the timeline.
    """

    span: Span

    @property
    def present(self) -> list[int]:
        """The ranks of the group whose tensors count in this step."""

    @property
    def contributes(self) -> bool:
        """Whether this rank's tensors count in this step."""

    def place(self, what: str) -> str:
        """Return a description of this place in the program, for messages."""


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that are combined together.

    Attributes:
      what: description for messages.
      op: operation that combines the tensors.
      dtype: dtype of all tensors.
      sizes: number of elements of each tensor; None if they differ from step to step.
      format: format between machines; formats that round are for float32 tensors of known sizes.
      alike: True if the sizes are the same on all ranks in each step, even if they are not known.
    """

    what: str
    op: Op
    dtype: np.dtype
    sizes: tuple[int, ...] | None
    format: Format = PLAIN
    alike: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors; 0 if unknown."""
        return sum(self.sizes or ()) * self.dtype.itemsize

    def wire(self, elements: int) -> Wire | None:
        """Return a wire that encodes so many elements step after step; None if they travel unchanged."""
        return self.format.wire(elements) if self.format.wire else None


Lost = tuple[np.ndarray, Piece]


class BucketAllReduce(Protocol):
    """All-reduce of one bucket by one engine."""

    @property
    def lost(self) -> Sequence[Lost]:
        """What rounding has lost, which is added to the values sent next (see ``Wire``), with the tensors' places."""

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        """Take this rank's tensors, flat, and the buffer for the results, before this rank arrives."""

    def run(
        self,
        context: AllReduceContext,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        """Write the results into the buffer's parts, after all have arrived. Collective: all ranks."""


@runtime_checkable
class PlacesBuffers(Protocol):
    """A ``BucketAllReduce`` that allocates its buffers itself."""

    @property
    def allocate(self) -> Allocate:
        """Function that allocates the memory of a buffer."""


class Engine(Protocol):
    """One way to combine arrays over the ranks. Equal engines work in the same way.

    Attributes:
      name: name in ``TFDIST_ENGINE``.
      device: TensorFlow's name of the device with its arrays.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def device(self) -> str: ...  # noqa: D102

    def needs(self, tensors: int) -> NodeMemory | None:
        """Return what it needs of a channel for buckets of at most so many tensors; None: only messages."""

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        """Open the engine for one bucket. Collective: the channel's group.

        Returns:
          The all-reduce of the bucket. None if the channel lacks what this engine needs: then MPI takes the bucket.
        """

    def settings(self) -> str:
        """Return the value of ``TFDIST_ENGINE`` that chooses this variant of the engine."""

    def __str__(self) -> str:
        """Return a description for messages."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which engine takes which bucket.

    Attributes:
      engine: engine for buckets of known sizes from ``crossover_bytes`` on.
      crossover_bytes: size below which buckets go to ``base``.
      base: engine for all other buckets, and for those that ``engine`` cannot take.
      small: engine for small buckets, asked before the other two; None if there is none.
      chunking: how arrays travel between machines.
    """

    engine: Engine
    crossover_bytes: float
    base: Engine
    small: Engine | None = None
    chunking: Chunking = Chunking()

    def needs(self, tensors: int, addresses: int = 0) -> NodeMemory | None:
        """Return what a channel must have; None: only messages.

        Args:
          tensors: largest number of tensors of a bucket; 0: there are no buckets.
          addresses: number of further addresses to publish, if the engine accesses the other ranks' memory.
        """
        engine = self.engine if self.crossover_bytes < float("inf") else None
        sharing = filter(None, [self.small, engine] if tensors else [])
        needs = [need for one in sharing if (need := one.needs(tensors))]
        peer_errors = engine.needs(1) if engine and addresses else None
        if peer_errors and peer_errors.addresses:
            needs.append(NodeMemory(0, addresses))
        return functools.reduce(NodeMemory.with_other, needs) if needs else None

    def open(self, bucket: Bucket, channel: Channel, tuned: bool) -> tuple[Engine, BucketAllReduce]:
        """Return the engine that takes a bucket, and open it. Collective: the channel's group.

        Args:
          bucket: the bucket.
          channel: channel of the bucket's collective.
          tuned: True if ``small`` and ``engine`` may take it; else ``base`` takes it.
        """
        large = bucket.sizes is not None and bucket.size_bytes >= self.crossover_bytes
        fitting = [self.small, self.engine if large else None] if tuned else []
        for engine in filter(None, [*fitting, self.base]):
            opened = engine.open(bucket, channel)
            if opened is not None:
                return engine, opened
        raise RuntimeError(f"{self.base} needs something that the channel of {bucket.what} does not have")
