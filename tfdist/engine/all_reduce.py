"""What travels in one exchange: buckets of dense tensors, or anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.engine._direct_engine import Adding, Direct, Staged
from tfdist.engine.buckets import Buffers
from tfdist.engine.collective import Turn
from tfdist.transport.interfaces import Channel


class Reduction:
    """Tensors of one dtype, combined over the ranks in one piece.

    Args:
      what: in words.
      op: how.
      dtype: of all tensors.
      sizes: elements of each; None if they differ from step to step.
      shared: in the node's own way, where there is one and it is faster.
    """

    def __init__(self, what: str, op: Op, dtype: np.dtype, sizes: Sequence[int] | None, shared: bool = False) -> None:
        self.what = what
        self._op = op
        self._dtype = dtype
        self._sizes = sizes
        self.shared_tensors = len(sizes) if shared and sizes is not None else 0
        self._buffers = Buffers()
        self._adding: Adding | None = None
        self._arrays: Sequence[np.ndarray] = ()
        self._parts: list[np.ndarray] = []

    def open(self, turn: Turn) -> None:
        """Choose the way."""
        node, tuning = turn.channel.node, turn.job.tuning
        if self._sizes is None or not self.shared_tensors or node is None or tuning is None:
            return
        if sum(self._sizes) * self._dtype.itemsize >= tuning.crossover_bytes:
            way = Staged if node.peers is None else Direct
            self._adding = way(self.what, node, self._op, self._dtype, self._sizes)

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the tensors."""
        self._arrays = arrays

    def load_nothing(self) -> None:
        """Zeros, which do not count."""
        if self._sizes is None:
            raise RuntimeError(
                f"{self.what} has tensors whose shapes are not known: tfdist.join cannot stand in for it"
            )
        self.load([np.zeros(size, self._dtype) for size in self._sizes])

    def communicate(self, turn: Turn) -> None:
        """Arrive and combine."""
        arrays, self._arrays = self._arrays, ()
        shapes = [a.shape for a in arrays]
        sources = [a.reshape(-1) for a in arrays]
        # Shapes that are not known beforehand have not been compared yet.
        what = self.what if self._sizes is not None else f"{self.what} of shape {shapes}"
        self._check([s.size for s in sources])
        whole, parts = self._buffers.take([s.size for s in sources], self._dtype)
        if self._adding is not None:
            self._adding.prepare(sources, whole)
        with turn.span("wait", self.what):
            turn.arrive(what, sum(s.nbytes for s in sources))
        divisor = max(1, len(turn.present)) if self._op == "mean" else 1
        if self._adding is not None:
            self._adding.run(turn, sources, whole, parts, divisor)
        else:
            self._privately(turn, sources, whole, parts, divisor)
        self._parts = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _check(self, sizes: Sequence[int]) -> None:
        """TensorFlow believes ``set_shape``; addresses must not."""
        if self._sizes is not None and list(sizes) != list(self._sizes):
            raise ValueError(
                f"{self.what}: tensors whose static shapes have {self._sizes} elements have {list(sizes)}; look for a "
                "set_shape that is not true"
            )

    def results(self) -> list[np.ndarray]:
        """Views of the buffer, which is not used again while anybody holds them."""
        parts, self._parts = self._parts, []
        return parts

    def _privately(
        self, turn: Turn, sources: Sequence[np.ndarray], whole: np.ndarray, parts: Sequence[np.ndarray], divisor: int
    ) -> None:
        # Dividing before the sum saves a pass, but costs narrow dtypes a rounding.
        before, after = (1, divisor) if reduce_ops.is_narrow(self._dtype) else (divisor, 1)
        with turn.span("copy in", self.what):
            if turn.contributes:
                for source, part in zip(sources, parts, strict=True):
                    reduce_ops.copy(source, part, before)
            else:
                whole[:] = reduce_ops.identity(self._op, self._dtype)
        with turn.span("reduce", self.what):
            turn.channel.all_reduce(whole, self._op, after)


class Plain:
    """Any function of a channel and arrays, after all have arrived.

    Args:
      what: in words.
      function: (channel, arrays) -> arrays; collective.
      same_size: all ranks must bring as many bytes.
    """

    shared_tensors = 0

    def __init__(
        self, what: str, function: Callable[[Channel, Sequence[np.ndarray]], list[np.ndarray]], same_size: bool
    ) -> None:
        self.what = what
        self._function = function
        self._same_size = same_size

    def open(self, turn: Turn) -> None:
        """Nothing to prepare."""

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy in."""
        self._arrays = [np.array(a, copy=True, order="C") for a in arrays]

    def load_nothing(self) -> None:
        """Impossible."""
        raise RuntimeError(f"{self.what}: tfdist.join cannot stand in for this rank; give all ranks equal data")

    def communicate(self, turn: Turn) -> None:
        """Arrive and call."""
        with turn.span("wait", self.what):
            turn.arrive(self.what, self._arrays[0].nbytes if self._same_size else 0)
        with turn.span("reduce", self.what):
            self._arrays = self._function(turn.channel, self._arrays)

    def results(self) -> list[np.ndarray]:
        """The function's."""
        return self._arrays
