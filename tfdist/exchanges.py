"""What travels in one exchange: buckets of dense tensors, or anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfdist import combining
from tfdist.buckets import Buffers, Piece, pack
from tfdist.collectives import Turn
from tfdist.combining import Op
from tfdist.world import Channel, Node


class Reduction:
    """Tensors of one dtype, combined over the ranks in one piece.

    Args:
      what: in words.
      op: how.
      dtype: of all tensors.
      sizes: elements of each; None if they differ from step to step.
      shared: through the node's shared memory, where there is some and it is the faster way.
    """

    def __init__(self, what: str, op: Op, dtype: np.dtype, sizes: Sequence[int] | None, shared: bool = False) -> None:
        self.what = what
        self._op = op
        self._dtype = dtype
        self._sizes = sizes
        self.wants_shared = shared and sizes is not None
        self._buffers = Buffers()
        self._node: Node | None = None
        self._arrays: Sequence[np.ndarray] = ()
        self._parts: list[np.ndarray] = []

    def open(self, turn: Turn) -> None:
        """Choose the way."""
        node, tuning = turn.channel.node, turn.job.tuning
        if self._sizes is not None and node is not None and tuning is not None:
            size_bytes = sum(self._sizes) * self._dtype.itemsize
            self._node = node if self.wants_shared and size_bytes >= tuning.crossover_bytes else None

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
        with turn.span("wait", self.what):
            turn.arrive(what, sum(s.nbytes for s in sources))
        whole, parts = self._buffers.take([s.size for s in sources], self._dtype)
        divisor = max(1, len(turn.present)) if self._op == "mean" else 1
        if self._node is None:
            self._privately(turn, sources, whole, parts, divisor)
        else:
            self._through_shared_memory(turn, self._node, sources, parts, divisor)
        self._parts = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def results(self) -> list[np.ndarray]:
        """Views of the buffer, which is not used again while anybody holds them."""
        parts, self._parts = self._parts, []
        return parts

    def _privately(
        self, turn: Turn, sources: Sequence[np.ndarray], whole: np.ndarray, parts: Sequence[np.ndarray], divisor: int
    ) -> None:
        before, after = self._divisors(divisor)
        with turn.span("copy in", self.what):
            if turn.contributes:
                for source, part in zip(sources, parts, strict=True):
                    combining.copy(source, part, before)
            else:
                whole[:] = combining.identity(self._op, self._dtype)
        with turn.span("reduce", self.what):
            turn.channel.all_reduce(whole, self._op, after)

    def _divisors(self, divisor: int) -> tuple[int, int]:
        """What is divided by before and after the sum: before saves a pass, but costs narrow dtypes a rounding."""
        return (1, divisor) if combining.is_narrow(self._dtype) else (divisor, 1)

    def _through_shared_memory(
        self, turn: Turn, node: Node, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], divisor: int
    ) -> None:
        adding = _Adding(turn, self.what, node, self._op, self._dtype, self._divisors(divisor))
        pieces = pack([s.size for s in sources], node.sums[0].nbytes // self._dtype.itemsize)
        for number, piece in enumerate(pieces):
            if number == 0:
                adding.copy_in(number, piece, sources)
            adding.add(number, piece[-1][2].stop)
            # In between two meetings there is always something to copy: a little delay of one rank holds nobody up.
            if number + 1 < len(pieces):
                adding.copy_in(number + 1, pieces[number + 1], sources)
            adding.copy_out(number, piece, targets)


class _Adding:
    """The pieces of one reduction on their way through the node's shared memory.

    Staging areas take turns. One may be copied into again two pieces later: by then all ranks have met as having
    copied in the piece between, which they do after they have added this one; and likewise for its sums.
    """

    def __init__(self, turn: Turn, what: str, node: Node, op: Op, dtype: np.dtype, divisors: tuple[int, int]) -> None:
        self._span, self._what, self._node, self._op = turn.span, what, node, op
        self._before, self._after = divisors
        self._inputs = [[x.view(dtype) for x in area] for area in node.inputs]
        self._sums = [x.view(dtype) for x in node.sums]
        self._present = [i for i, rank in enumerate(node.ranks) if rank in set(turn.present)]
        self._copied, self._added = turn.place(f"{what}, copied"), turn.place(f"{what}, added")

    def copy_in(self, number: int, piece: Piece, sources: Sequence[np.ndarray]) -> None:
        own = self._inputs[number % 2][self._node.index]
        with self._span("copy in", self._what):
            for tensor, part, staged in piece:
                combining.copy(sources[tensor][part], own[staged], self._before)
            self._node.copied.enter()

    def add(self, number: int, elements: int) -> None:
        node, sums = self._node, self._sums[number % 2]
        with self._span("wait for copies", self._what):
            node.copied.wait(self._copied)
        with self._span("reduce", self._what):
            if node.lane is not None:
                own = combining.slices(elements, node.lanes, sums.itemsize)[node.lane]
                contributions = [self._inputs[number % 2][i][own] for i in self._present]
                combining.combine(self._op, contributions, sums[own], self._after if node.alone else 1)
                node.exchange(sums[own], self._op, self._after)
            node.added.enter()

    def copy_out(self, number: int, piece: Piece, targets: Sequence[np.ndarray]) -> None:
        sums = self._sums[number % 2]
        with self._span("wait for sums", self._what):
            self._node.added.wait(self._added)
        with self._span("copy out", self._what):
            for tensor, part, staged in piece:
                np.copyto(targets[tensor][part], sums[staged])


class Plain:
    """Any function of a channel and arrays, after all have arrived.

    Args:
      what: in words.
      function: (channel, arrays) -> arrays; collective.
      same_size: all ranks must bring as many bytes.
    """

    wants_shared = False

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
