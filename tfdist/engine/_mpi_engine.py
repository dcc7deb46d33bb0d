"""MPI engine: sends messages of the channel, for buckets that no other engine takes and ranks alone on their host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import padded
from tfdist.engine import _layout
from tfdist.engine._buffers import private
from tfdist.engine.engines import Bucket, BucketAllReduce, Context, Lost
from tfdist.transport.interfaces import Channel


class MpiEngine:
    """See ``engines.Engine``. Takes any bucket."""

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce:
        return _InOneBuffer(bucket, channel)

    def __str__(self) -> str:
        return "through MPI"


class _InOneBuffer:
    """See ``engines.BucketAllReduce``. Copies the tensors into one buffer, and combines it over the channel."""

    allocate = staticmethod(private)

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
        context: Context,
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
