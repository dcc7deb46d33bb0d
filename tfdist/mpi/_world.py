"""MPI world: the ranks of an MPI job, their communicators and process groups. Starts MPI, as nothing else does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from mpi4py import MPI

from tfdist.core.environment import Launch
from tfdist.core.flight_recorder import Recorder
from tfdist.core.log import log
from tfdist.core.settings import Settings, settings_difference
from tfdist.core.topology import layout
from tfdist.core.trace_files import flight_recorder, job_name, new_folder
from tfdist.mpi._group import Communicators, Groups, MpiGroup
from tfdist.mpi._launcher_watch import LauncherWatch
from tfdist.mpi._states import MpiStates
from tfdist.mpi._windows import Windows
from tfdist.transport.interfaces import Group, SetupError
from tfdist.transport.stall_detection import StallDetector


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


class MpiWorld(MpiGroup):
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
        name = comm.bcast(job_name())
        folder = self._machine.bcast(new_folder(settings, name) if self._machine.rank == 0 else "")
        self.recorder: Recorder = flight_recorder(settings, comm.rank, comm.size, folder)
        # (A part of a machine that is taken for a node is one here, too: that is how the way between them is tried.)
        self._states = MpiStates(comm.Dup(), node if settings.node_size else self._machine, self.recorder)
        detector = StallDetector(self._states, settings, self.recorder)
        self._launcher = LauncherWatch(comm.rank)
        if not settings.outlive_launcher:
            self._launcher.start()
        self._stall_abort_seconds = settings.stall_abort_seconds
        has_neighbours = max(len(n) for n in topology.nodes) > 1
        self._windows = Windows(comm.Dup(), node, self.local_size) if has_neighbours else None
        super().__init__(Communicators(comm, detector, range(comm.size), topology, "all ranks", self._windows))
        self.topology = topology
        self._comm = comm
        self._detector = detector
        self._groups = Groups(comm, detector, topology)

    def process_memory_obstacle(self) -> str:
        return self._windows.unreadable if self._windows else "no two ranks share a machine"

    def group(self, ranks: Sequence[int]) -> Group:
        return self._groups.take(ranks)

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
        self._states.close()
