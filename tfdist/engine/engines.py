"""Engine: one way to add arrays of all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tfdist.core.reduce_ops import Op
from tfdist.core.wires import PLAIN, Format, Wire
from tfdist.engine._buffers import Allocate
from tfdist.engine._layout import Piece
from tfdist.record.flight_recorder import Span
from tfdist.transport.interfaces import Channel


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
        context: AllReduceContext,
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
