"""All-reduce of a bucket as one exchange: wait for all ranks, let an engine add, return the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.engine import _layout
from tfdist.engine._buffers import Buffers
from tfdist.engine.engines import Bucket, BucketAllReduce, Context, Engine


class AllReduce:
    """See ``exchange.Exchange``. Combines the tensors of a bucket over the ranks.

    Args:
      bucket: the tensors and the operation.
      lines: descriptions of the tensors, compared between the ranks.
      shares_memory: True if any engine may take the bucket; else MPI takes it.

    Attributes:
      engine: the engine that takes the bucket; None before ``open``.
      has_rest: True if the format between machines rounds; what is lost is added to the values sent next.
      elements: number of elements of all tensors; 0 if their shapes are unknown.
      pending: float32 [elements], the same on all ranks, added once to the next results; None: nothing to add.
    """

    def __init__(self, bucket: Bucket, lines: Sequence[str] = (), shares_memory: bool = False) -> None:
        self._bucket = bucket
        self.what = bucket.what
        self.has_rest = bucket.format.wire is not None
        self.elements = sum(bucket.sizes or ())
        self.pending: np.ndarray | None = None
        as_what = f" as {bucket.format.name}" if self.has_rest else ""
        self.lines: Sequence[str] = [*lines, f"{bucket.what}: {bucket.op} of {bucket.dtype.name}{as_what}"]
        self.shares_memory = shares_memory and bucket.sizes is not None
        self.engine: Engine | None = None
        self._buffers = Buffers()
        self._gaps = _layout.gaps(bucket.sizes or (), bucket.dtype) if self.has_rest else []
        self._opened: BucketAllReduce | None = None
        self._arrays: Sequence[np.ndarray] = ()
        self._parts: list[np.ndarray] = []

    def open(self, context: Context) -> None:
        """Choose the engine, and open it for the bucket."""
        self.engine, self._opened = context.choice.open(self._bucket, context.channel, self.shares_memory)
        self._buffers = Buffers(self._opened.allocate)

    @property
    def dtype(self) -> np.dtype:
        """dtype of the tensors."""
        return self._bucket.dtype

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffers."""
        return self._buffers.size_bytes

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the tensors."""
        self._arrays = arrays

    def take_lost(self) -> np.ndarray:
        """Return what rounding has lost on this rank, float32 [elements], and do not add it to the values sent next."""
        found = np.zeros(self.elements, np.float32)
        starts = np.cumsum([0, *(self._bucket.sizes or ())])
        for lost, piece in self._opened.lost if self._opened else ():
            for tensor, part, place in piece:
                found[starts[tensor] + part.start : starts[tensor] + part.stop] = lost[place]
            lost[:] = 0
        return found

    def load_nothing(self) -> None:
        """Load zeros, which do not count in the result."""
        if self._bucket.sizes is None:
            raise RuntimeError(
                f"{self.what} has tensors whose shapes are not known, so tfdist.join cannot send zeros for this rank; "
                "give all ranks equal data"
            )
        self.load([np.zeros(size, self._bucket.dtype) for size in self._bucket.sizes])

    def communicate(self, context: Context) -> None:
        """Wait for all ranks and combine."""
        assert self._opened is not None
        arrays, self._arrays = self._arrays, ()
        shapes = [a.shape for a in arrays]
        sources = [a.reshape(-1) for a in arrays]
        # Unknown shapes have not been compared between the ranks yet.
        what = self.what if self._bucket.sizes is not None else f"{self.what} of shape {shapes}"
        self._check([s.size for s in sources])
        whole, parts = self._buffers.take([s.size for s in sources], self._bucket.dtype)
        for gap in self._gaps:  # a value that is not finite leaves NaN in its block of the wire, gaps included
            whole[gap] = 0
        self._opened.prepare(sources, whole)
        with context.span("wait", self.what):
            context.arrive(what, sum(s.nbytes for s in sources))
        divisor = max(1, len(context.present)) if self._bucket.op == "mean" else 1
        self._opened.run(context, sources, whole, parts, divisor)
        if self.pending is not None:
            pending, self.pending = self.pending, None
            for part, more in zip(parts, np.split(pending, np.cumsum(self._bucket.sizes or ())[:-1]), strict=True):
                part += more
        self._parts = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _check(self, sizes: Sequence[int]) -> None:
        """Compare with the static shapes: TensorFlow trusts a wrong ``set_shape``, but addresses must be right."""
        if self._bucket.sizes is not None and list(sizes) != list(self._bucket.sizes):
            raise ValueError(
                f"{self.what}: tensors whose static shapes have {list(self._bucket.sizes)} elements have "
                f"{list(sizes)}; look for a wrong set_shape"
            )

    def results(self) -> list[np.ndarray]:
        """Return views of the buffer, which is not reused while they exist."""
        parts, self._parts = self._parts, []
        return parts
