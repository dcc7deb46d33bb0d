"""Engine: one way to add arrays of all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tfdist.core.reduce_ops import Op
from tfdist.core.rounded_wire import Wire
from tfdist.core.wires import PLAIN, Format
from tfdist.engine._buffers import Allocate
from tfdist.engine._layout import Piece
from tfdist.record.flight_recorder import Span
from tfdist.transport.interfaces import Channel


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


DEVICE = "/device:CPU:0"  # TensorFlow's name of the device with the arrays
Lost = tuple[np.ndarray, Piece]


class BucketAllReduce(Protocol):
    """All-reduce of one bucket by one engine."""

    @property
    def allocate(self) -> Allocate:
        """Function that allocates the memory of a buffer."""

    @property
    def lost(self) -> Sequence[Lost]:
        """What rounding has lost, which is added to the values sent next (see ``Wire``), with the tensors' places."""

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        """Take this rank's tensors, flat, and the buffer for the results, before this rank arrives."""

    def run(
        self,
        context: Context,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        """Write the results into the buffer's parts, after all have arrived. Collective: all ranks."""


class Engine(Protocol):
    """One way to combine arrays over the ranks. Its text describes it for messages."""

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        """Open the engine for one bucket. Collective: the channel's group.

        Returns:
          The all-reduce of the bucket. None if this engine does not take it.
        """


@dataclasses.dataclass(frozen=True)
class Choice:
    """The engines of a job, which are asked in turn for each bucket.

    Attributes:
      base: engine that takes every bucket, by messages.
      small: engine for small buckets; None: there is none.
      large: engine for buckets that the ranks of a node add in mapped memory; None: they cannot map it.
    """

    base: Engine
    small: Engine | None = None
    large: Engine | None = None

    @property
    def shares_memory(self) -> bool:
        """Whether an engine may use the channel's memory of a node."""
        return bool(self.small or self.large)

    def open(self, bucket: Bucket, channel: Channel, shares_memory: bool) -> tuple[Engine, BucketAllReduce]:
        """Return the engine that takes a bucket, and open it. Collective: the channel's group.

        Args:
          bucket: the bucket.
          channel: channel of the bucket's collective.
          shares_memory: False if ``base`` must take it.
        """
        for engine in filter(None, [*([self.small, self.large] if shares_memory else []), self.base]):
            if (opened := engine.open(bucket, channel)) is not None:
                return engine, opened
        raise RuntimeError(f"{self.base} does not take {bucket.what}")


@dataclasses.dataclass
class Now:
    """Where a collective is.

    Attributes:
      name: name of the collective.
      step: number of the step, from 1.
      present: ranks of the group whose tensors count in this step.
    """

    name: str
    step: int = 0
    present: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Context:
    """What an exchange, and the engine that takes its bucket, get from their collective.

    Attributes:
      now: where the collective is.
      channel: channel of the collective.
      choice: engines for buckets.
      ranks: ranks of the channel, by their numbers in the job.
      span: records a span for the timeline.
      arrive: function (what, number of bytes) that waits for all ranks.
      key: function (size of this step's tensors, or None) -> number that identifies the exchange in its group. It is
        the same on all ranks. If the size changes from step to step, each has a number of its own.
    """

    now: Now
    channel: Channel
    choice: Choice
    ranks: Sequence[int]
    span: Span
    arrive: Callable[[str, int], None]
    key: Callable[[int | None], int]

    @property
    def present(self) -> list[int]:
        """The ranks of the group whose tensors count in this step."""
        return self.now.present

    @property
    def contributes(self) -> bool:
        """Whether this rank's tensors count in this step."""
        return self.channel.rank in self.now.present

    def place(self, what: str) -> str:
        """Return a description of this place in the program, for messages."""
        return f"{self.now.name}, step {self.now.step}, {what}"
