"""How the ranks of a node add what they bring: each a slice, where tensors lie or through a staging area."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.engine import buckets
from tfdist.engine.collective import Turn
from tfdist.transport._stall_detection import PeerError
from tfdist.transport.interfaces import Node
from tfdist.transport.process_memory import Peers, address

# Read from another rank, added and divided while it stays in a core's second-level cache.
_BLOCK_BYTES = 1 << 19


class Adding(Protocol):
    """Combines tensors of one dtype over the ranks.

    Args:
      what: in words.
      node: the ranks.
      op: how.
      dtype: of all tensors.
      sizes: elements of each.
    """

    def __init__(self, what: str, node: Node, op: Op, dtype: np.dtype, sizes: Sequence[int]) -> None: ...

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        """Before this rank arrives: these are its tensors, flat, and the buffer for the results."""

    def run(
        self, turn: Turn, sources: Sequence[np.ndarray], whole: np.ndarray, targets: Sequence[np.ndarray], divisor: int
    ) -> None:
        """After all have arrived: put the results into the buffer's parts. Collective: all ranks."""


class Direct:
    """Each rank reads its slice of the others' tensors where they lie, and writes the result where they want it.

    One meeting orders it: nobody hands out results, or writes tensors again, before all have read and written. (That
    tensors may be read, and buffers written, is what the arrival says.)
    """

    def __init__(self, what: str, node: Node, op: Op, dtype: np.dtype, sizes: Sequence[int]) -> None:
        assert node.peers is not None
        self._what, self._node, self._op, self._dtype = what, node, op, dtype
        self._peers: Peers = node.peers
        offsets = buckets.offsets(sizes, dtype)
        self._slices = reduce_ops.slices(offsets[-1], node.lanes, dtype.itemsize)
        room = _BLOCK_BYTES // dtype.itemsize
        own = slice(0, 0) if node.lane is None else self._slices[node.lane]
        pieces = buckets.cut(sizes, offsets[:-1], own, room)
        self._blocks = _blocks(pieces, dtype.itemsize)
        self._vectors = _Vectors(pieces, dtype.itemsize)
        self._landing = np.empty((max(0, len(node.ranks) - 2), room), dtype)

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        """Tell where they lie."""
        self._peers.publish([address(whole), *map(address, sources)])

    def run(
        self, turn: Turn, sources: Sequence[np.ndarray], whole: np.ndarray, targets: Sequence[np.ndarray], divisor: int
    ) -> None:
        """See ``Adding``."""
        with turn.span("reduce", self._what):
            self._add(turn, sources, whole, divisor)
            self._node.copied.enter()
        with turn.span("wait for copies", self._what):
            self._node.copied.wait(turn.place(f"{self._what}, copied"))

    @contextlib.contextmanager
    def _reaching(self, turn: Turn, index: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            rank = self._node.ranks[index]
            raise PeerError(
                f"{turn.place(self._what)}: the memory of rank {rank} cannot be reached ({error}): it has ended, or "
                "else TFDIST_ENGINE=shared avoids this"
            ) from error

    def _add(self, turn: Turn, sources: Sequence[np.ndarray], whole: np.ndarray, divisor: int) -> None:
        node = self._node
        if node.lane is None:
            return
        present = set(turn.present)
        contributing = [i for i, rank in enumerate(node.ranks) if rank in present]
        others = [i for i in contributing if i != node.index]
        vectors = self._vectors
        theirs = {i: vectors.sources(self._peers.addresses(i)[1:]) for i in others}
        # The first of the others lands where the sum will be: it is among the first two that are added.
        ours = dict(zip(others, [vectors.places(whole), *map(vectors.landings, self._landing)], strict=False))
        for block in self._blocks:
            area = whole[block.whole]
            landed = dict(zip(others, [area, *self._landing], strict=False))
            for i in others:
                with self._reaching(turn, i):
                    self._peers.read(i, theirs[i][block.vectors], ours[i][block.vectors], block.size_bytes)
            for tensor, part, here in block.parts:
                contributions = [sources[tensor][part] if i == node.index else landed[i][here] for i in contributing]
                reduce_ops.combine(self._op, contributions, area[here], divisor if node.alone else 1)
            if node.alone:
                self._hand_out(turn, whole, block.whole)  # while it is in the cache
        if not node.alone:
            own = self._slices[node.lane]
            node.exchange(whole[own], self._op, divisor, turn.place(f"{self._what}, nodes"))
            self._hand_out(turn, whole, own)

    def _hand_out(self, turn: Turn, whole: np.ndarray, part: slice) -> None:
        for i in range(len(self._node.ranks)):
            if i != self._node.index:
                with self._reaching(turn, i):
                    buffer = int(self._peers.addresses(i)[0])
                    self._peers.write(i, whole[part], buffer + part.start * self._dtype.itemsize)


@dataclasses.dataclass
class _Block:
    """Stretches of tensors that lie together in a buffer, no more than stays in a core's cache.

    Attributes:
      whole: the elements of the buffer from the first part to the last.
      parts: (tensor, elements of it, elements of ``whole``).
      vectors: the parts' numbers among those of all blocks.
      size_bytes: of all parts.
    """

    whole: slice
    parts: Sequence[tuple[int, slice, slice]]
    vectors: slice
    size_bytes: int


def _blocks(pieces: Sequence[buckets.Piece], itemsize: int) -> list[_Block]:
    blocks = []
    seen = 0
    for piece in pieces:
        whole = slice(piece[0][2].start, piece[-1][2].stop)
        parts = [(tensor, part, _moved(place, whole)) for tensor, part, place in piece]
        elements = sum(part.stop - part.start for _, part, _ in piece)
        blocks.append(_Block(whole, parts, slice(seen, seen + len(piece)), elements * itemsize))
        seen += len(piece)
    return blocks


def _moved(place: slice, whole: slice) -> slice:
    return slice(place.start - whole.start, place.stop - whole.start)


class _Vectors:
    """Addresses and sizes (struct iovec) of all parts of all blocks, int64 [parts, 2]."""

    def __init__(self, pieces: Sequence[buckets.Piece], itemsize: int) -> None:
        parts = [(*part, piece[0][2].start) for piece in pieces for part in piece]
        self._tensors = np.array([tensor for tensor, _, _, _ in parts], np.int64)
        self._starts = np.array([part.start for _, part, _, _ in parts], np.int64) * itemsize
        self._places = np.array([place.start for _, _, place, _ in parts], np.int64) * itemsize
        self._landings = np.array([place.start - first for _, _, place, first in parts], np.int64) * itemsize
        self._sizes = np.array([part.stop - part.start for _, part, _, _ in parts], np.int64) * itemsize

    def sources(self, table: np.ndarray) -> np.ndarray:
        """In tensors that begin at the given addresses: int64 [tensors]."""
        return np.stack([table[self._tensors] + self._starts, self._sizes], axis=1)

    def places(self, whole: np.ndarray) -> np.ndarray:
        """In the buffer."""
        return np.stack([address(whole) + self._places, self._sizes], axis=1)

    def landings(self, area: np.ndarray) -> np.ndarray:
        """In an area that holds one block."""
        return np.stack([address(area) + self._landings, self._sizes], axis=1)


class Staged:
    """Piece by piece through shared memory: copied in, added by slices, copied out.

    Staging areas take turns. One may be copied into again two pieces later: by then all ranks have met as having
    copied in the piece between, which they do after they have added this one; and likewise for its sums.
    """

    def __init__(self, what: str, node: Node, op: Op, dtype: np.dtype, sizes: Sequence[int]) -> None:
        self._what, self._node, self._op = what, node, op
        self._narrow = reduce_ops.is_narrow(dtype)
        self._inputs = [[x.view(dtype) for x in area] for area in node.inputs]
        self._sums = [x.view(dtype) for x in node.sums]
        self._pieces = buckets.pack(sizes, self._sums[0].size)

    def prepare(self, sources: Sequence[np.ndarray], whole: np.ndarray) -> None:
        """Nothing."""

    def run(
        self, turn: Turn, sources: Sequence[np.ndarray], whole: np.ndarray, targets: Sequence[np.ndarray], divisor: int
    ) -> None:
        """See ``Adding``."""
        before, after = (1, divisor) if self._narrow else (divisor, 1)  # before saves a pass, but rounds
        pieces = self._pieces
        for number, piece in enumerate(pieces):
            if number == 0:
                self._copy_in(turn, number, piece, sources, before)
            self._add(turn, number, piece[-1][2].stop, after)
            # In between two meetings there is always something to copy: a little delay of one rank holds nobody up.
            if number + 1 < len(pieces):
                self._copy_in(turn, number + 1, pieces[number + 1], sources, before)
            self._copy_out(turn, number, piece, targets)

    def _copy_in(
        self, turn: Turn, number: int, piece: buckets.Piece, sources: Sequence[np.ndarray], divisor: int
    ) -> None:
        own = self._inputs[number % 2][self._node.index]
        with turn.span("copy in", self._what):
            for tensor, part, staged in piece:
                reduce_ops.copy(sources[tensor][part], own[staged], divisor)
            self._node.copied.enter()

    def _add(self, turn: Turn, number: int, elements: int, divisor: int) -> None:
        node, sums = self._node, self._sums[number % 2]
        with turn.span("wait for copies", self._what):
            node.copied.wait(turn.place(f"{self._what}, copied"))
        with turn.span("reduce", self._what):
            if node.lane is not None:
                own = reduce_ops.slices(elements, node.lanes, sums.itemsize)[node.lane]
                present = set(turn.present)
                contributions = [
                    self._inputs[number % 2][i][own] for i, rank in enumerate(node.ranks) if rank in present
                ]
                reduce_ops.combine(self._op, contributions, sums[own], divisor if node.alone else 1)
                if not node.alone:
                    node.exchange(sums[own], self._op, divisor, turn.place(f"{self._what}, nodes"))
            node.added.enter()

    def _copy_out(self, turn: Turn, number: int, piece: buckets.Piece, targets: Sequence[np.ndarray]) -> None:
        sums = self._sums[number % 2]
        with turn.span("wait for sums", self._what):
            self._node.added.wait(turn.place(f"{self._what}, added"))
        with turn.span("copy out", self._what):
            for tensor, part, staged in piece:
                np.copyto(targets[tensor][part], sums[staged])
