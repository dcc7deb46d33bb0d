"""Small buckets: every rank gets all ranks' tensors and adds them itself, which is faster than another barrier."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.engine import _layout
from tfdist.engine._buffers import private
from tfdist.engine.engines import Bucket, BucketAllReduce, Context, Lost
from tfdist.transport.interfaces import SMALL_BYTES, Channel

_ATTACHMENT_BYTES = 1 << 17  # limit for one bucket on all ranks together; on one machine SMALL_BYTES


@dataclasses.dataclass(frozen=True)
class SmallBucketEngine:
    """See ``engines.Engine``. Takes small buckets of known sizes.

    Attributes:
      largest_bytes: largest size of a bucket.
      between_machines: True if tensors travel with the ranks' arrival; False if through shared memory.
    """

    largest_bytes: int
    between_machines: bool

    def open(self, bucket: Bucket, channel: Channel) -> BucketAllReduce | None:
        if bucket.sizes is None:
            return None
        offsets = _layout.offsets(bucket.sizes, bucket.dtype)
        size_bytes = offsets[-1] * bucket.dtype.itemsize
        way = _Attachments(channel) if self.between_machines else _SharedMemory(channel)
        return _SmallBucket(bucket, way, offsets) if size_bytes <= min(self.largest_bytes, way.capacity_bytes) else None

    def __str__(self) -> str:
        way = "sent with the arrival" if self.between_machines else "added by each rank"
        return f"up to {self.largest_bytes // 1024} KiB {way}"


def for_small_buckets(ranks: int, between_machines: bool) -> SmallBucketEngine:
    """Return the engine for small buckets in a job of so many ranks."""
    largest = (_ATTACHMENT_BYTES if between_machines else SMALL_BYTES) // ranks
    return SmallBucketEngine(largest // ALIGNMENT_BYTES * ALIGNMENT_BYTES, between_machines)


class _SmallBucket:
    """See ``engines.BucketAllReduce``. Tensors are handed over before the ranks arrive; then each rank adds all."""

    lost: Sequence[Lost] = ()
    allocate = staticmethod(private)

    def __init__(self, bucket: Bucket, way: _SharedMemory | _Attachments, offsets: Sequence[int]) -> None:
        self._what, self._op, self._way = bucket.what, bucket.op, way
        self._places = [slice(at, at + size) for at, size in zip(offsets, bucket.sizes or (), strict=False)]

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        own = self._way.own(whole)
        for source, place in zip(sources, self._places, strict=True):
            own[place] = source
        self._way.hand_over(own)

    def run(
        self,
        context: Context,
        sources: Sequence[np.ndarray],
        whole: np.ndarray,
        targets: Sequence[np.ndarray],
        divisor: int,
    ) -> None:
        with context.span("reduce", self._what):
            reduce_ops.combine(self._op, self._way.arrays(context.present, whole), whole, divisor)


class _SharedMemory:
    """Two staging areas, which take turns from arrival to arrival.

    An area is overwritten only after all ranks have arrived once more, which they do after they have added.
    """

    def __init__(self, channel: Channel) -> None:
        self._node = node = channel.node
        self.capacity_bytes = node.inputs[0][0].size if node and node.alone else -1
        self._area: Sequence[np.ndarray] = ()

    def own(self, whole: np.ndarray) -> np.ndarray:
        """Return the array into which this rank's tensors are copied."""
        assert self._node
        self._area = self._node.inputs[self._node.next_area()]
        return self._area[self._node.index].view(whole.dtype)

    def hand_over(self, own: np.ndarray) -> None:
        """Do nothing: the tensors are in shared memory already."""

    def arrays(self, ranks: Sequence[int], whole: np.ndarray) -> list[np.ndarray]:
        """Return the tensors of these ranks, after all have arrived."""
        assert self._node
        present = set(ranks)
        areas = [area for rank, area in zip(self._node.ranks, self._area, strict=True) if rank in present]
        return [area.view(whole.dtype)[: whole.size] for area in areas]


class _Attachments:
    """Tensors that travel with the ranks' arrival, so that no second message is needed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.capacity_bytes = _ATTACHMENT_BYTES if channel.takes_attachments else -1

    def own(self, whole: np.ndarray) -> np.ndarray:
        """Return the array into which this rank's tensors are copied."""
        return whole

    def hand_over(self, own: np.ndarray) -> None:
        """Attach the tensors to the next arrival."""
        self._channel.attach(own.view(np.uint8))

    def arrays(self, ranks: Sequence[int], whole: np.ndarray) -> list[np.ndarray]:
        """Return the tensors of these ranks, after all have arrived."""
        attachments = self._channel.attachments()
        return [attachments[rank].view(whole.dtype) for rank in ranks]
