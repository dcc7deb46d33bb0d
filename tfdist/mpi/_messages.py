"""Messages: MPI's collective operations as requests, so that waits can have a deadline.

A blocking MPI call never returns if a rank is stopped, or a link breaks, during the call.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.transport.stall_detection import Request

# Size of a piece, for which one deadline counts. (MPI counts are C ints, and some libraries count bytes in them.)
PIECE_BYTES = 1 << 26
_OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}
_LOGICAL = {"sum": MPI.LOR, "max": MPI.LOR, "min": MPI.LAND, "product": MPI.LAND}

Wait = Callable[[Request], None]


class Messages:
    """Collective operations of a communicator.

    Args:
      comm: communicator for this object alone, or one whose users take turns.
      wait: function that waits until a request is complete, or raises an error.
    """

    def __init__(self, comm: Any, wait: Wait) -> None:
        self._comm = comm
        self._wait = wait

    def all_reduce(self, array: np.ndarray, op: Op, divisor: int) -> None:
        """Combine an array in place. Not for narrow dtypes: MPI adds float16 coarsely, and bfloat16 not at all."""
        operation = _LOGICAL[op] if array.dtype.kind == "b" else _OPS[op]
        for piece in _pieces(array):
            self._wait(self._comm.Iallreduce(MPI.IN_PLACE, piece, operation))
        reduce_ops.scale(array, divisor)

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Overwrite an array with the array of the rank ``root``."""
        for piece in _pieces(array.reshape(-1).view(np.uint8)):
            self._wait(self._comm.Ibcast(piece, root))

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the bytes of each rank, in any number."""
        counts = np.zeros(self._comm.size, np.int64)
        self._wait(self._comm.Iallgather(np.array([array.nbytes], np.int64), counts))
        gathered = np.empty(int(counts.sum()), np.uint8)
        parts = np.split(gathered, np.cumsum(counts)[:-1])
        if gathered.nbytes < PIECE_BYTES:
            self._wait(self._comm.Iallgatherv(array, [gathered, counts]))
        else:
            for root, part in enumerate(parts):
                if root == self._comm.rank:
                    part[:] = array
                self.broadcast(part, root)
        return parts

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send bytes to each rank, in any number. Return the bytes from each rank."""
        largest = max(part.nbytes for part in parts)
        sizes = np.array([(part.nbytes, largest) for part in parts], np.int64)
        told = np.empty_like(sizes)
        self._wait(self._comm.Ialltoall(sizes, told))
        counts, largest = told[:, 0], int(told[:, 1].max())
        # Bytes of each part at a time, so that no rank sends or gets more than MPI can count.
        piece = max(1, PIECE_BYTES // self._comm.size)
        if largest <= piece:
            return self._all_to_all_at_once(parts, counts)
        received = [np.empty(count, np.uint8) for count in counts]
        for start in range(0, largest, piece):
            pieces = [part[start : start + piece] for part in parts]
            found = self._all_to_all_at_once(pieces, np.clip(counts - start, 0, piece))
            for whole, one in zip(received, found, strict=True):
                whole[start : start + piece] = one
        return received

    def _all_to_all_at_once(self, parts: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
        received = np.empty(int(counts.sum()), np.uint8)
        sizes = np.array([part.nbytes for part in parts], np.int64)
        self._wait(self._comm.Ialltoallv([np.concatenate(parts), sizes], [received, counts]))
        return np.split(received, np.cumsum(counts)[:-1])

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the value of each rank; values are picklable."""
        return [pickle.loads(part.tobytes()) for part in self.all_gather(_pickled(value))]

    def broadcast_object(self, value: Any, root: int) -> Any:
        """Return the picklable value of the rank ``root``."""
        own = _pickled(value) if self._comm.rank == root else np.empty(0, np.uint8)
        size = np.array([own.nbytes], np.int64)
        self._wait(self._comm.Ibcast(size, root))
        buffer = np.empty(int(size[0]), np.uint8)
        if self._comm.rank == root:
            buffer[:] = own
        self.broadcast(buffer, root)
        return pickle.loads(buffer.tobytes())


def _pickled(value: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    step = max(1, PIECE_BYTES // max(1, flat.itemsize))
    for start in range(0, flat.size, step):
        yield flat[start : start + step]
