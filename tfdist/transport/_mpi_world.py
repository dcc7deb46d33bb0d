"""MPI world: the ranks of an MPI job, their communicators and process groups. Starts MPI, as nothing else does."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.alignment import aligned
from tfdist.core.environment import Launch
from tfdist.core.log import log
from tfdist.core.settings import Settings, settings_difference
from tfdist.core.topology import Topology, layout
from tfdist.transport._channel_pool import ChannelPool
from tfdist.transport._launcher_watch import LauncherWatch
from tfdist.transport._mpi_channel import MpiChannel, MpiNode
from tfdist.transport._shared_memory import LINE_BYTES, Segments
from tfdist.transport._stall_detection import StallDetector
from tfdist.transport.interfaces import Channel, Group, NodeMemory, SetupError
from tfdist.transport.process_memory import ProcessMemory, address, allow_siblings

_SHARED_MEMORY = "/dev/shm"
# Windows are costly for MPI (communicators, files): small channels share one.
_WINDOW_BYTES = 16 << 20
_SPARE_SHARE = 0.9  # of what is free: others need some too


def processes() -> int:
    """How many processes MPI sees."""
    return MPI.COMM_WORLD.size


def problem(launched: Launch) -> str:
    """What is wrong with this MPI, with the remedy; empty if it will do.

    Args:
      launched: what the launcher has told this process; the size or the rank may be missing.
    """
    library = library_version()
    size, rank = launched.size, launched.rank
    if (size is not None and size != processes()) or (rank is not None and rank >= processes()):
        started = f"{size} processes" if size is not None else f"rank {rank}"
        return (
            f"the launcher started {started}, but MPI sees a job of {processes()}: mpirun and the library that "
            f"mpi4py uses ({library}) belong to different MPIs. Start with that library's own mpirun."
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return (
            f"this MPI ({library}) was started without MPI_THREAD_MULTIPLE, which tfdist needs: its threads wait "
            "while TensorFlow computes. Use a build with it, and leave mpi4py.rc.thread_level at 'multiple'."
        )
    return ""


def library_version() -> str:
    """One line."""
    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


class _Mail:
    """Announcements as eager point-to-point messages on a communicator of their own."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self._sent: list[Any] = []

    def send_to_all(self, message: Any) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        others = (r for r in range(self.size) if r != self.rank)
        self._sent += [self._comm.isend(message, dest=r) for r in others]

    def receive_all(self) -> Iterator[tuple[int, Any]]:
        status = MPI.Status()
        # A matched probe: ops wait in several threads, and each message belongs to the one that found it.
        while (message := self._comm.improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            yield status.source, message.recv()


class _SharedMemory:
    """Windows of memory that the ranks of a node share, allocated as channels ask for it.

    Args:
      everyone: all ranks; only to decide together.
      node: the ranks of this node.
      ranks_on_machine: that take from the same file system.
    """

    def __init__(self, everyone: Any, node: Any, ranks_on_machine: int) -> None:
        self._everyone = everyone
        self._node = node
        self._ranks_on_machine = ranks_on_machine
        self._windows: list[Any] = []
        self._segments: Segments | None = None
        self._told = False
        self.pids: Sequence[int] = node.allgather(os.getpid())

    @functools.cached_property
    def unreadable(self) -> str:
        """Why some rank cannot read the memory of another of its node; empty if all can. Collective: all ranks."""
        allow_siblings()
        # Another container's process may have the same number: what is read must be what its rank has written.
        secret = np.frombuffer(os.urandom(64), np.uint8)
        written = self._node.allgather((address(secret), secret.tobytes()))
        reason = ""
        try:
            peers = ProcessMemory(self.pids, [], self._node.rank)
            for index, (where, expected) in enumerate(written):
                found = np.zeros(64, np.uint8)
                vectors = np.array([[where, 64]]), np.array([[address(found), 64]])
                peers.read(index, *vectors, size_bytes=64)
                if found.tobytes() != expected:
                    reason = f"process {self.pids[index]} is another one than the rank's"
        except OSError as error:
            reason = str(error)
        return self._first(reason)

    def segments(self, size_bytes: int) -> Segments | None:
        """Segments with that much left; None if any rank cannot have them. Collective: all ranks."""
        if self._segments is None or self._segments.free_bytes < size_bytes:
            sizes = dict.fromkeys((max(size_bytes, _WINDOW_BYTES), size_bytes))
            granted = next((g for g in map(self._allocate, sizes) if g is not None), None)
            if granted is None:
                return None
            self._segments = granted
        return self._segments

    def _allocate(self, size_bytes: int) -> Segments | None:
        reason = self._obstacle(size_bytes * self._ranks_on_machine)
        window = None
        if not self._first(reason):
            try:
                window = MPI.Win.Allocate_shared(size_bytes, 1, MPI.INFO_NULL, self._node)
            except MPI.Exception as error:
                reason = f"MPI refuses shared memory ({error})"
        reason = self._first(reason)
        if reason or window is None:
            if self._everyone.rank == 0 and not self._told:
                log(f"{reason}: what would need it goes another way, more slowly")
            self._told = True
            return None
        window.Lock_all()
        self._windows.append(window)
        memory = [np.frombuffer(window.Shared_query(r)[0], np.uint8)[:size_bytes] for r in range(self._node.size)]
        memory[self._node.rank][: min(size_bytes, _WINDOW_BYTES)] = 0
        window.Sync()
        self._node.Barrier()
        return Segments(memory, self._node.rank, window.Sync)

    def _obstacle(self, size_bytes: int) -> str:
        try:
            status = os.statvfs(_SHARED_MEMORY)
        except OSError:
            return ""  # not this system's place for it: MPI will know
        free = status.f_bavail * status.f_frsize
        if size_bytes <= free * _SPARE_SHARE:
            return ""
        return f"{_SHARED_MEMORY} has {free / 2**20:.0f} MiB free where {size_bytes / 2**20:.0f} are needed"

    def _first(self, reason: str) -> str:
        return next((r for r in self._everyone.allgather(reason) if r), "")


class _MpiGroup:
    """Some of the job's ranks; see ``interfaces.Group``.

    Args:
      comm: of these ranks; only duplicates of it carry messages.
      detector: this rank's knowledge of the others.
      ranks: in the job.
      shared: where channels get shared memory; None for groups that do without.
    """

    def __init__(
        self, comm: Any, detector: StallDetector, ranks: Sequence[int], shared: _SharedMemory | None, topology: Topology
    ) -> None:
        self._comm = comm
        self._detector = detector
        self._shared = shared
        self.ranks: Sequence[int] = list(ranks)
        self.rank = comm.rank
        self.size = comm.size
        self.topology = topology
        self.control: Channel = MpiChannel(comm.Dup(), detector, self.ranks)
        self._pool = ChannelPool(self.control, self._new_channel)

    def channel(self, place: str, sharing: NodeMemory | None = None) -> Channel:
        return self._pool.take(place, sharing)

    def give_back(self, channel: Channel) -> None:
        self._pool.give_back(channel)

    def _new_channel(self, sharing: NodeMemory | None) -> Channel:
        comm = self._comm.Dup()
        node = self._node(comm, sharing) if sharing else None
        return MpiChannel(comm, self._detector, self.ranks, node)

    def _node(self, comm: Any, sharing: NodeMemory) -> MpiNode | None:
        wanted = 4 * aligned(sharing.piece_bytes) + aligned(8 * sharing.addresses) + 3 * aligned(2 * LINE_BYTES)
        segments = self._shared.segments(wanted) if self._shared else None
        if segments is None:
            return None
        ranks = self.topology.node_of(self.rank)
        lane = self.topology.lane_of(self.rank)
        between = comm.Split(MPI.UNDEFINED if lane is None else lane, self.rank)
        alone = len(self.topology.nodes) == 1
        between = None if alone else between
        pids = self._shared.pids if self._shared else []
        return MpiNode(segments, self._detector, ranks, self.topology.lanes, lane, between, sharing, pids)


class MpiWorld(_MpiGroup):
    """All ranks of an MPI job; see ``interfaces.World``. Collective: all ranks."""

    def __init__(self, settings: Settings) -> None:
        # Dup and Split are collective and blocking: here all ranks have just been started.
        comm = MPI.COMM_WORLD.Dup()
        difference = settings_difference(comm.allgather(settings))
        if difference:
            raise SetupError(difference)
        self._machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = self._machine.rank
        self.local_size = self._machine.size
        first = self._machine.bcast(comm.rank)
        topology = layout(comm.allgather(first), settings.node_size)
        node = comm.Split(topology.nodes.index(topology.node_of(comm.rank)), comm.rank)
        detector = StallDetector(_Mail(comm.Dup()), settings)
        self._launcher = LauncherWatch(comm.rank)
        if not settings.outlive_launcher:
            self._launcher.start()
        self._stall_abort_seconds = settings.stall_abort_seconds
        has_neighbours = max(len(n) for n in topology.nodes) > 1
        shared = _SharedMemory(comm.Dup(), node, self.local_size) if has_neighbours else None
        super().__init__(comm, detector, range(comm.size), shared, topology)

    def process_memory_obstacle(self) -> str:
        return self._shared.unreadable if self._shared else "no two ranks share a machine"

    def group(self, ranks: Sequence[int]) -> Group:
        self._detector.check(f"the making of a group of the ranks {', '.join(map(str, ranks))}")
        chosen = MPI.COMM_WORLD.Get_group().Incl(list(ranks))
        comm = self._comm.Create_group(chosen)
        return _MpiGroup(comm, self._detector, ranks, None, self.topology)

    def alone(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return self._detector.alone(reason)

    def announce(self, kind: str, what: str = "") -> None:
        self._detector.announce(kind, what)

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        return self._machine.allgather(cores)

    def description(self) -> str:
        return library_version()

    def abort(self, exit_code: int) -> None:
        self._comm.Abort(exit_code)

    def end(self, exit_code: int = 0) -> None:
        self._detector.announce("ended", f"with exit code {exit_code}" if exit_code else "")
        # MPI's own finalisation waits busily; a rank that is done must leave the core to those that work.
        request = self._comm.Ibarrier()
        start = time.monotonic()
        while not request.Test():
            time.sleep(0.01)
            # Others may be saving what they have; but one that never comes must not hold the job up.
            waited = time.monotonic() - start
            reason = "gave up waiting" if self._detector.gave_up else "lost its launcher" if self._launcher.gone else ""
            if reason and waited > self._stall_abort_seconds:
                log(f"rank {self.rank} {reason}, and has ended {waited:.0f} s ago: the other ranks end now")
                self.abort(1)
