"""Engine: one way to add arrays of all ranks, and the table of engines, where a new one is listed.

A new engine is a module like ``_shared_memory_engine`` and a line, ``register(name, candidates)``: it can then be
chosen by ``TFDIST_ENGINE``, and is timed beside the others when that is ``auto``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from tfdist.core import settings
from tfdist.core.flight_recorder import Span
from tfdist.core.reduce_ops import Op
from tfdist.core.settings import Settings
from tfdist.core.wires import float32
from tfdist.core.wires.format import Format, Wire
from tfdist.engine._buffers import Allocate
from tfdist.engine._layout import Piece
from tfdist.transport.interfaces import Channel, Chunking, NodeMemory, World


class AllReduceContext(Protocol):
    """What an engine must know of the exchange that it carries out; more of it: ``exchange.ExchangeContext``.

    Attributes:
      span: for the timeline.
    """

    span: Span

    @property
    def present(self) -> list[int]:
        """The ranks of the group whose tensors count in this step."""

    @property
    def contributes(self) -> bool:
        """Whether this rank's do."""

    def place(self, what: str) -> str:
        """Where this is, in words."""


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that are combined in one piece.

    Attributes:
      what: in words.
      op: how.
      dtype: of all tensors.
      sizes: elements of each; None if they differ from step to step.
      format: how they travel between machines; another than as they are is for float32 of known sizes.
    """

    what: str
    op: Op
    dtype: np.dtype
    sizes: tuple[int, ...] | None
    format: Format = float32.FORMAT

    @property
    def size_bytes(self) -> int:
        """Of all tensors; 0 if it is not known."""
        return sum(self.sizes or ()) * self.dtype.itemsize

    def wire(self, elements: int) -> Wire | None:
        """How so many elements of it travel, step after step, if not as they are."""
        return self.format.wire(elements) if self.format.wire else None


Lost = tuple[np.ndarray, Piece]


class BucketAllReduce(Protocol):
    """All-reduce of one bucket by one engine."""

    @property
    def lost(self) -> Sequence[Lost]:
        """What rounding has lost, to be added to what is sent next (see ``Wire``), and where it lies."""

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        """Before this rank arrives: these are its tensors, flat, and the buffer for the results."""

    def run(
        self,
        context: AllReduceContext,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        """After all have arrived: put the results into the buffer's parts. Collective: all ranks."""


@runtime_checkable
class PlacesBuffers(Protocol):
    """What a ``BucketAllReduce`` is, too, if its buffers cannot be anywhere."""

    @property
    def allocate(self) -> Allocate:
        """Makes the memory of one."""


class Engine(Protocol):
    """One way to combine arrays over the ranks; engines that are equal work alike.

    Attributes:
      name: as ``TFDIST_ENGINE`` has it.
      device: where its arrays live, as TensorFlow names devices.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def device(self) -> str: ...  # noqa: D102

    def needs(self, tensors: int) -> NodeMemory | None:
        """What it needs of a channel for buckets of so many tensors at most; None: nothing but messages."""

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        """Ready for one bucket. Collective: the channel's group.

        Returns:
          None if the channel does not have what this engine needs: MPI does it then.
        """

    def settings(self) -> str:
        """What chooses this very engine, as ``TFDIST_ENGINE`` has it."""

    def __str__(self) -> str:
        """What it does, in words."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which engine takes which bucket.

    Attributes:
      engine: takes buckets of known sizes from ``crossover_bytes`` on.
      crossover_bytes: smaller ones go through ``base``.
      base: takes the rest, and what ``engine`` cannot.
      small: comes before both, if there is one, and takes what it finds small.
      chunking: between machines.
    """

    engine: Engine
    crossover_bytes: float
    base: Engine
    small: Engine | None = None
    chunking: Chunking = Chunking()

    def needs(self, tensors: int, addresses: int = 0) -> NodeMemory | None:
        """What a channel must have.

        Args:
          tensors: of a bucket at most; 0: there are no buckets.
          addresses: that are published beside those, where the engine reaches the other ranks' memory.
        """
        engine = self.engine if self.crossover_bytes < float("inf") else None
        sharing = filter(None, [self.small, engine] if tensors else [])
        needs = [need for one in sharing if (need := one.needs(tensors))]
        reaching = engine.needs(1) if engine and addresses else None
        if reaching and reaching.addresses:
            needs.append(NodeMemory(0, addresses))
        return functools.reduce(NodeMemory.with_other, needs) if needs else None

    def open(self, bucket: Bucket, channel: Channel, tuned: bool) -> tuple[Engine, BucketAllReduce]:
        """The engine that takes a bucket, ready for it. Collective: the channel's group.

        Args:
          bucket: which.
          channel: its own.
          tuned: ``engine`` may take it.
        """
        large = bucket.sizes is not None and bucket.size_bytes >= self.crossover_bytes
        fitting = [self.small, self.engine if large else None] if tuned else []
        for engine in filter(None, [*fitting, self.base]):
            opened = engine.open(bucket, channel)
            if opened is not None:
                return engine, opened
        raise RuntimeError(f"{self.base} needs something that the channel of {bucket.what} does not have")


Candidates = Callable[[World, Settings], Sequence[Engine]]
_CANDIDATES: dict[str, Candidates] = {}


def register(name: str, candidates: Candidates) -> None:
    """Add an engine to the table.

    Args:
      name: for ``TFDIST_ENGINE``.
      candidates: (world, settings) -> the engine in its variants as far as the system allows it; collective.
    """
    _CANDIDATES[name] = candidates
    if name not in settings.ENGINES:
        settings.ENGINES.append(name)


def candidates(world: World, settings: Settings) -> list[Engine]:
    """The engines that the settings and the system allow. Collective: all ranks."""
    # (What TensorFlow's collectives do not take, these do.)
    names = [settings.engine] if settings.engine in _CANDIDATES else list(_CANDIDATES)
    return [engine for name in names for engine in _CANDIDATES[name](world, settings)]
