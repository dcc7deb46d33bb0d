"""MPI engines: what is small, what no other engine takes, and ranks without a neighbour: by the channel's messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import ALIGNMENT_BYTES, padded
from tfdist.core.settings import Settings
from tfdist.engine import _layout
from tfdist.engine.engines import AllReduceTurn, Bucket, BucketAllReduce, Engine
from tfdist.transport.interfaces import Channel, NodeMemory, World

# Of all ranks together: what comes to each of them at once.
_LETTERS_BYTES = 1 << 17


@dataclasses.dataclass(frozen=True)
class MpiEngine:
    """See ``engines.Engine``."""

    name: ClassVar[str] = "mpi"
    device: ClassVar[str] = "/device:CPU:0"

    def needs(self, tensors: int) -> NodeMemory | None:
        return None

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        return _InOneBuffer(bucket, channel)

    def settings(self) -> str:
        return "engine=mpi"

    def __str__(self) -> str:
        return "through MPI"


@dataclasses.dataclass(frozen=True)
class LetterEngine:
    """For small buckets between machines, which come with the ranks' arrival; see ``engines.Engine``.

    Attributes:
      largest_bytes: of a bucket.
    """

    name: ClassVar[str] = "at once"
    device: ClassVar[str] = "/device:CPU:0"

    largest_bytes: int

    def needs(self, tensors: int) -> NodeMemory | None:
        return None

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        if not channel.takes_letters or bucket.sizes is None:
            return None
        small = _layout.offsets(bucket.sizes, bucket.dtype)[-1] * bucket.dtype.itemsize <= self.largest_bytes
        return _InLetters(bucket, channel) if small else None

    def settings(self) -> str:
        return "engine=mpi"

    def __str__(self) -> str:
        return f"up to {self.largest_bytes // 1024} KiB with the arrival"


def for_small_buckets(ranks: int) -> LetterEngine:
    """Of several machines with so many ranks in all."""
    return LetterEngine(_LETTERS_BYTES // ranks // ALIGNMENT_BYTES * ALIGNMENT_BYTES)


def candidates(world: World, settings: Settings) -> Sequence[Engine]:
    """None beside the base of every choice."""
    return ()


class _InOneBuffer:
    """See ``engines.BucketAllReduce``."""

    def __init__(self, bucket: Bucket, channel: Channel) -> None:
        self._bucket = bucket
        self._channel = channel

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        pass

    def run(
        self,
        turn: AllReduceTurn,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        bucket = self._bucket
        # Dividing before the sum saves a pass, but costs narrow dtypes a rounding.
        before, after = (1, divisor) if reduce_ops.is_narrow(bucket.dtype) else (divisor, 1)
        sums = self._channel.begin(whole, bucket.op, after)
        with turn.span("copy in", bucket.what):
            if turn.contributes:
                stop = 0
                for source, target in zip(sources, targets, strict=True):
                    reduce_ops.copy(source, target, before)
                    stop += padded(source.size, bucket.dtype)
                    sums.offer(stop)
            else:
                whole[:] = reduce_ops.identity(bucket.op, bucket.dtype)
        with turn.span("reduce", bucket.what):
            for _ in sums.finish():
                pass


class _InLetters:
    """See ``engines.BucketAllReduce``: everybody gets everything and adds it, one way through the network in all."""

    def __init__(self, bucket: Bucket, channel: Channel) -> None:
        self._bucket = bucket
        self._channel = channel

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        stop = 0
        for source in sources:
            whole[stop : stop + source.size] = source
            stop += padded(source.size, self._bucket.dtype)
        self._channel.enclose(whole.view(np.uint8))

    def run(
        self,
        turn: AllReduceTurn,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        with turn.span("reduce", self._bucket.what):
            letters = self._channel.letters()
            contributions = [letters[rank].view(whole.dtype) for rank in turn.present]
            reduce_ops.combine(self._bucket.op, contributions, whole, divisor)
