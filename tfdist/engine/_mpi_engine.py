"""MPI engine: sends messages of the channel, for buckets that no other engine takes and ranks alone on their host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import padded
from tfdist.core.settings import Settings
from tfdist.engine import _layout
from tfdist.engine.engines import AllReduceContext, Bucket, BucketAllReduce, Engine, Lost
from tfdist.transport.interfaces import Channel, NodeMemory, World


@dataclasses.dataclass(frozen=True)
class MpiEngine:
    """See ``engines.Engine``. Takes any bucket."""

    name: ClassVar[str] = "mpi"
    device: ClassVar[str] = "/device:CPU:0"

    def needs(self, tensors: int) -> NodeMemory | None:
        return None

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        return _InOneBuffer(bucket, channel)

    def settings(self) -> str:
        return "mpi"

    def __str__(self) -> str:
        return "through MPI"


def candidates(world: World, settings: Settings) -> Sequence[Engine]:
    """Return no engine: the MPI engine is the base of every choice anyway."""
    return ()


class _InOneBuffer:
    """See ``engines.BucketAllReduce``. Copies the tensors into one buffer, and combines it over the channel."""

    def __init__(self, bucket: Bucket, channel: Channel) -> None:
        self._bucket = bucket
        self._channel = channel
        sizes, dtype = bucket.sizes or (), bucket.dtype
        self._wire = bucket.wire(_layout.offsets(sizes, dtype)[-1])
        self.lost: Sequence[Lost] = [] if self._wire is None else [(self._wire.lost, _layout.whole(sizes, dtype))]

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        pass

    def run(
        self,
        context: AllReduceContext,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        bucket = self._bucket
        # Dividing before the sum saves a pass, but costs narrow dtypes a rounding.
        before, after = (1, divisor) if reduce_ops.is_narrow(bucket.dtype) else (divisor, 1)
        sums = self._channel.begin(whole, bucket.op, after, self._wire)
        with context.span("copy in", bucket.what):
            if context.contributes:
                stop = 0
                for source, target in zip(sources, targets, strict=True):
                    reduce_ops.copy(source, target, before)
                    stop += padded(source.size, bucket.dtype)
                    sums.offer(stop)
            else:
                whole[:] = reduce_ops.identity(bucket.op, bucket.dtype)
        with context.span("reduce", bucket.what):
            for _ in sums.finish():
                pass
