"""MPI channel: an ordered line of operations over a communicator of its own, and its node's part."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.core.topology import Lane
from tfdist.mpi._shared_memory import Segments
from tfdist.transport.interfaces import DisagreementError, Node, NodeMemory, SplitBarrier
from tfdist.transport.process_memory import ProcessMemory
from tfdist.transport.stall_detection import StallDetector

# MPI counts are C ints, and some libraries count bytes in them.
_PIECE_BYTES = 1 << 30
_GATHERED_RANKS = 64  # so many bring 1.5 KB in all, which takes less time than finding out that they are equal
_OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}
_LOGICAL = {"sum": MPI.LOR, "max": MPI.LOR, "min": MPI.LAND, "product": MPI.LAND}


class MpiChannel:
    """A communicator of its own; see ``interfaces.Channel``.

    Args:
      comm: of the group; this channel alone uses it.
      detector: this rank's knowledge of the others.
      ranks: of the group in the job.
      line: its name for the flight recorder: the same on all its ranks.
      node: the shared memory.
      returned: is told when this rank needs the channel no more.
    """

    def __init__(
        self,
        comm: Any,
        detector: StallDetector,
        ranks: Sequence[int],
        line: str,
        node: MpiNode | None = None,
        returned: Callable[[MpiChannel], None] = lambda channel: None,
    ) -> None:
        self._comm = comm
        self._returned = returned
        self._closed = False
        self._detector = detector
        self._ranks = ranks
        self._recorder = detector.recorder
        self._line = line
        self._arrivals = 0
        self._entry = 0
        self._node = node
        self.node: Node | None = node
        self.rank = comm.rank
        self.size = comm.size

    def arrive(self, place: str, flags: int = 0, size_bytes: int = 0) -> list[int]:
        if self._closed:
            raise RuntimeError(f"{place}: the group of the ranks {', '.join(map(str, self._ranks))} was closed")
        self._detector.check(place)
        self._arrivals += 1
        self._entry = self._recorder.enter(self._line, self._arrivals, place, size_bytes)
        found = self._arrive(place, flags, size_bytes)
        self._recorder.met(self._entry)
        return found

    def _arrive(self, place: str, flags: int, size_bytes: int) -> list[int]:
        own = (zlib.crc32(place.encode()), size_bytes, flags)
        if self._node is not None and self._node.alone:
            rows = self._node.bring(own, place)
        elif self.size > _GATHERED_RANKS and self._equal(own, place):
            return [flags] * self.size
        else:
            brought = np.empty((self.size, 3), np.int64)
            self._detector.wait(self._comm.Iallgather(np.array(own, np.int64), brought), place, self._ranks)
            rows = brought.tolist()
        first = rows[0][:2]
        if any(row[:2] != first for row in rows):
            raise DisagreementError(self._difference(place, size_bytes))
        return [row[2] for row in rows]

    def _equal(self, own: Sequence[int], place: str) -> bool:
        """Whether all ranks bring the same: the greatest is the least. It takes no more bytes with more ranks."""
        both = np.array([*own, *(-number for number in own)], np.int64)
        found = np.empty_like(both)
        self._detector.wait(self._comm.Iallreduce(both, found, MPI.MAX), place, self._ranks)
        most, negative = found.reshape(2, -1)
        return bool((most == -negative).all())

    def done(self) -> None:
        self._recorder.leave(self._entry)

    def give_back(self) -> None:
        self._returned(self)

    def close(self) -> None:
        """Free its communicator. Collective: all its ranks, which do not use it any more."""
        self._closed = True
        self._comm.Free()

    def give_up(self, error: BaseException) -> None:
        self._detector.give_up(error)

    def _difference(self, place: str, size_bytes: int) -> str:
        # All ranks have seen the same numbers, so all come here together.
        brought = self._comm.allgather((place, size_bytes))
        other = next(r for r, what in enumerate(brought) if what != brought[0])
        (place_0, bytes_0), (place_1, bytes_1) = brought[0], brought[other]
        first, second = self._ranks[0], self._ranks[other]
        if place_0 != place_1:
            return (
                f"rank {first} is in {place_0}, but rank {second} in {place_1}. All ranks must run the same "
                "operations in the same order: look for a call that depends on the rank."
            )
        return (
            f"rank {first} brings {bytes_0} bytes to {place_0}, but rank {second} {bytes_1} bytes. "
            "Every rank must have tensors of the same shape and dtype there."
        )

    def all_reduce(self, array: np.ndarray, op: Op = "sum", divisor: int = 1) -> None:
        _all_reduce(self._comm, array, op, divisor)

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        _broadcast(self._comm, array, root)

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        return _all_gather(self._comm, array)

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        return _all_to_all(self._comm, parts)

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        self.arrive(place)
        parts = _all_gather(self._comm, _pickled(value))
        self.done()
        return [pickle.loads(part.tobytes()) for part in parts]

    def broadcast_object(self, value: Any, place: str, root: int = 0) -> Any:
        self.arrive(place)
        own = _pickled(value) if self.rank == root else np.empty(0, np.uint8)
        size = np.array([own.nbytes], np.int64)
        self._comm.Bcast(size, root)
        buffer = np.empty(int(size[0]), np.uint8)
        if self.rank == root:
            buffer[:] = own
        _broadcast(self._comm, buffer, root)
        self.done()
        return pickle.loads(buffer.tobytes())


class _Meeting:
    """See ``interfaces.SplitBarrier``."""

    def __init__(self, segments: Segments, detector: StallDetector, ranks: Sequence[int]) -> None:
        self._lines = segments.lines()
        self._detector = detector
        self._ranks = ranks

    def enter(self) -> None:
        self._lines.enter(())

    def wait(self, place: str) -> None:
        if not self._lines.Test():
            self._detector.wait(self._lines, place, self._ranks)


class MpiNode:
    """The shared memory of a channel; see ``interfaces.Node``.

    Args:
      segments: the memory.
      detector: this rank's knowledge of the others.
      ranks: of this node.
      lanes: what this rank adds, side by side.
      between: for each lane its ranks on all nodes; none if there is one node.
      sharing: what the channel uses.
      pids: of this node's ranks.
    """

    def __init__(
        self,
        segments: Segments,
        detector: StallDetector,
        ranks: Sequence[int],
        lanes: Sequence[Lane],
        between: Sequence[Any],
        sharing: NodeMemory,
        pids: Sequence[int],
    ) -> None:
        self._lines = segments.lines()
        self._scratch = np.empty(0, np.uint8)
        self._area = 0
        self._detector = detector
        self._between = list(zip(lanes, between, strict=bool(between)))
        self._start, self._stop = lanes[0].start, lanes[-1].stop
        self.ranks = ranks
        self.index = segments.index
        self.alone = not between
        # The meetings come first: their memory must be zero, and only a window's beginning is.
        self.copied: SplitBarrier = _Meeting(segments, detector, ranks)
        self.added: SplitBarrier = _Meeting(segments, detector, ranks)
        piece, count = sharing.piece_bytes, sharing.addresses
        tables = [memory.view(np.int64) for memory in segments.each(8 * count)]
        self.process_memory = ProcessMemory(pids, tables, segments.index) if count else None
        self.inputs: Sequence[Sequence[np.ndarray]] = [segments.each(piece) for _ in range(2)]
        self.sums: Sequence[np.ndarray] = [segments.each(piece)[0] for _ in range(2)]

    def scratch(self, size_bytes: int) -> np.ndarray:
        if self._scratch.size < size_bytes:
            self._scratch = np.empty(size_bytes, np.uint8)
        return self._scratch[:size_bytes]

    def bring(self, numbers: Sequence[int], place: str) -> list[list[int]]:
        """Wait for the node's ranks; what each has brought."""
        self._lines.enter(numbers)
        self._detector.wait(self._lines, place, self.ranks)
        return self._lines.read(len(numbers))

    def next_area(self) -> int:
        self._area = 1 - self._area
        return self._area

    def own(self, elements: int, itemsize: int) -> slice:
        return reduce_ops.stretch(elements, self._start, self._stop, itemsize)

    def exchange(self, array: np.ndarray, op: Op, place: str) -> None:
        for lane, comm in self._between:  # in one order on all ranks
            # A rank that fails in its node's sum must not leave those of other nodes in MPI's blocking call.
            self._detector.wait(comm.Ibarrier(), place, lane.ranks)
            _all_reduce(comm, array[reduce_ops.stretch(array.size, lane.start, lane.stop, array.itemsize)], op, 1)


def _all_reduce(comm: Any, array: np.ndarray, op: Op, divisor: int) -> None:
    # MPI adds float16 coarsely and bfloat16 not at all, and Open MPI 5 clips sums of small integers to their range.
    if array.itemsize <= 2 and array.dtype.kind != "b":
        _all_reduce_here(comm, array, op, divisor)
        return
    operation = _LOGICAL[op] if array.dtype.kind == "b" else _OPS[op]
    for piece in _pieces(array):
        comm.Allreduce(MPI.IN_PLACE, piece, operation)
    reduce_ops.scale(array, divisor)


def _all_reduce_here(comm: Any, array: np.ndarray, op: Op, divisor: int) -> None:
    """MPI carries, each rank combines a slice."""
    parts = reduce_ops.slices(array.size, comm.size, array.itemsize)
    received = _all_to_all(comm, [array[part].view(np.uint8) for part in parts])
    own = array[parts[comm.rank]]
    reduce_ops.combine(op, [r.view(array.dtype) for r in received], own, divisor)
    for part, gathered in zip(parts, _all_gather(comm, own.view(np.uint8)), strict=True):
        array[part] = gathered.view(array.dtype)


def _broadcast(comm: Any, array: np.ndarray, root: int) -> None:
    for piece in _pieces(array.reshape(-1).view(np.uint8)):
        comm.Bcast(piece, root)


def _all_gather(comm: Any, array: np.ndarray) -> list[np.ndarray]:
    counts = np.zeros(comm.size, np.int64)
    comm.Allgather(np.array([array.nbytes], np.int64), counts)
    gathered = np.empty(int(counts.sum()), np.uint8)
    parts = np.split(gathered, np.cumsum(counts)[:-1])
    if gathered.nbytes < _PIECE_BYTES:
        comm.Allgatherv(array, [gathered, counts])
    else:
        for root, part in enumerate(parts):
            if root == comm.rank:
                part[:] = array
            _broadcast(comm, part, root)
    return parts


def _all_to_all(comm: Any, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    largest = max(part.nbytes for part in parts)
    sizes = np.array([(part.nbytes, largest) for part in parts], np.int64)
    told = np.empty_like(sizes)
    comm.Alltoall(sizes, told)
    counts, largest = told[:, 0], int(told[:, 1].max())
    piece = max(1, _PIECE_BYTES // comm.size)  # of a part, so that no rank sends or gets more than MPI can count
    if largest <= piece:
        return _all_to_all_at_once(comm, parts, counts)
    received = [np.empty(count, np.uint8) for count in counts]
    for start in range(0, largest, piece):
        pieces = [part[start : start + piece] for part in parts]
        found = _all_to_all_at_once(comm, pieces, np.clip(counts - start, 0, piece))
        for whole, one in zip(received, found, strict=True):
            whole[start : start + piece] = one
    return received


def _all_to_all_at_once(comm: Any, parts: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    received = np.empty(int(counts.sum()), np.uint8)
    sizes = np.array([part.nbytes for part in parts], np.int64)
    comm.Alltoallv([np.concatenate(parts), sizes], [received, counts])
    return np.split(received, np.cumsum(counts)[:-1])


def _pickled(value: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    step = max(1, _PIECE_BYTES // max(1, flat.itemsize))
    for start in range(0, flat.size, step):
        yield flat[start : start + step]
