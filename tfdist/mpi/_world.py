"""MPI world: the ranks of an MPI job, their communicators and process groups. Its import starts MPI, or ``_start``."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from tfdist.core.environment import Launch
from tfdist.core.log import write_last_message
from tfdist.core.settings import Settings, settings_difference
from tfdist.core.topology import layout
from tfdist.mpi._group import Communicators, Groups, MpiGroup
from tfdist.mpi._neighbours import avoid_forbidden_reads
from tfdist.mpi._shared_memory import SharedMemory, take_names_off
from tfdist.mpi._states import MpiStates
from tfdist.processes import mapped_memory
from tfdist.processes.companion import Companion
from tfdist.processes.deadline import END_SECONDS, end_by_alarm, process_deadline
from tfdist.processes.launcher_watch import LauncherWatch
from tfdist.record.flight_recorder import FlightRecorder
from tfdist.record.trace_files import flight_recorder, job_name, new_folder
from tfdist.transport.awake import RunningSeconds
from tfdist.transport.errors import PeerError, SetupError
from tfdist.transport.interfaces import Group
from tfdist.transport.saving import Saving
from tfdist.transport.stall_detection import Request, StallDetector

_ALONE = "no two ranks share a machine"
_PLACE = "the start of tfdist"
_LOOK_SECONDS = 1.0  # between two checks of ranks that have not ended
_ABORT_SECONDS = 10.0  # for MPI to end the job


def processes() -> int:
    """Return the number of processes that MPI sees."""
    return MPI.COMM_WORLD.size


def problem(launched: Launch) -> str:
    """Return what is wrong with this MPI, with the remedy; empty if it can be used.

    Args:
      launched: the launcher's numbers of this process; size or rank may be None.
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
    """Return the name and version of the MPI library, in one line."""
    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


class MpiWorld(MpiGroup):
    """All ranks of an MPI job; see ``interfaces.World``. Collective: all ranks.

    Args:
      settings: settings of this rank.
      companion: small process that watches this rank.
    """

    def __init__(self, settings: Settings, companion: Companion) -> None:
        self._companion = companion
        comm = self._begin(settings)
        detector = StallDetector(self._states, settings, self.recorder, self._abort)
        self._launcher = LauncherWatch(comm.rank)
        if not settings.outlive_launcher:
            self._launcher.start()
        self._stall_abort_seconds = settings.stall_abort_seconds
        topology = self.topology
        has_neighbours = max(len(n) for n in topology.nodes) > 1
        with detector.inside(_PLACE):
            shared = SharedMemory(comm.Dup(), self._node, self.local_size, detector) if has_neighbours else None
        self._has_neighbours = has_neighbours
        self._unmappable: str | None = None
        super().__init__(Communicators(comm, detector, range(comm.size), topology, "all ranks", shared))
        self.waits = detector
        self.saves = Saving(detector, self._states, self._states.near, settings)
        self._groups = Groups(comm, detector, topology)

    def _begin(self, settings: Settings) -> MPI.Intracomm:
        """Find the ranks that share a machine, and let the ranks read each other's states."""
        comm = MPI.COMM_WORLD.Dup()
        self._machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
        avoid_forbidden_reads(comm, self._machine)
        difference = settings_difference(comm.allgather(settings))
        if difference:
            raise SetupError(difference)
        self.local_rank = self._machine.rank
        self.local_size = self._machine.size
        self._machine.Barrier()
        take_names_off()
        first = self._machine.bcast(comm.rank)
        topology = layout(comm.allgather(first), settings.node_size)
        self.topology = topology
        self._node = node = comm.Split(topology.nodes.index(topology.node_of(comm.rank)), comm.rank)
        name = comm.bcast(job_name())
        folder = self._machine.bcast(new_folder(settings, name) if self._machine.rank == 0 else "")
        self.recorder: FlightRecorder = flight_recorder(settings, comm.rank, comm.size, folder)
        # (If tests divide a machine into nodes, states are divided, too: so the exchange between machines is tested.)
        self._states = MpiStates(comm.Dup(), node if settings.node_size else self._machine, self.recorder)
        self.hosts = self._states.hosts
        self._comm = comm
        return comm

    def mapped_memory_obstacle(self) -> str:
        if self._unmappable is None:
            neighbours = self.topology.node_of(self.rank)
            self._unmappable = (
                _ALONE if not self._has_neighbours else mapped_memory.obstacle(self.control, neighbours, self.rank)
            )
        return self._unmappable

    def group(self, ranks: Sequence[int]) -> Group:
        return self._groups.take(ranks)

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        with self.waits.inside("the sharing of the machine's cores"):
            return self._machine.allgather(cores)

    def description(self) -> str:
        return library_version()

    def abort(self, exit_code: int) -> None:
        self._abort(exit_code)

    def end(self, exit_code: int = 0, note: int = 0) -> list[int]:
        self.waits.announce("ended", f"with exit code {exit_code}" if exit_code else "")
        # MPI's own finalisation busy-waits. A rank that has finished must leave its core to ranks that work.
        notes = self._meet("has ended", note)
        self._states.stop()
        return notes

    def finish(self) -> None:
        self._companion.ended()
        if self._meet("has finished", 1):
            with process_deadline(2 * self._stall_abort_seconds + END_SECONDS):  # no Python thread runs any more
                self._wait_for_closed(self._states.close())
            end_by_alarm(self._stall_abort_seconds + END_SECONDS)  # a rank may be stopped in MPI's own end
            MPI.Finalize()

    def _wait_for_closed(self, closed: Request) -> None:
        if self.waits.gave_up:  # it does not report other ranks any more
            while not closed.Test():
                time.sleep(0.01)
            return
        try:
            self.waits.wait(closed, "the end of the program", moving=True)
        except PeerError as error:
            self.waits.end_job(error)

    def _meet(self, what: str, note: int) -> list[int]:
        """Wait for the ends of all ranks and return their notes; empty if one is gone after its end, without MPI's."""
        own, notes = np.array([note], np.int64), np.zeros(self.size, np.int64)
        request = self._comm.Iallgather(own, notes)
        clock = RunningSeconds()
        last_seen = next_look = 0.0
        lost = ""
        while not request.Test():
            time.sleep(0.01)
            # Other ranks may still be saving. But a rank that never comes must not block the job.
            waited = clock.passed()
            if waited >= next_look:
                next_look = waited + _LOOK_SECONDS
                lost = self.waits.lost()
                last_seen = last_seen if lost else waited
                if self.waits.gone_after_its_end:
                    return []
                self._launcher.look()
            reason = "gave up waiting" if self.waits.gave_up else "lost its launcher" if self._launcher.gone else ""
            if reason and waited > self._stall_abort_seconds:
                self._say_and_abort(
                    f"rank {self.rank} {reason}, and {what} {waited:.0f} s ago: the other ranks end now"
                )
            if lost and waited - last_seen > self._stall_abort_seconds:
                self._say_and_abort(f"rank {self.rank} {what} {waited:.0f} s ago, and waits in vain: {lost}")
        return [int(note) for note in notes]

    def _say_and_abort(self, message: str) -> None:
        write_last_message(f"tfdist: {message}")
        self.abort(1)

    def _abort(self, exit_code: int) -> None:
        self._companion.aborts()
        end_by_alarm(2 * _ABORT_SECONDS)  # MPI's output may block: the launcher may be cut off
        with process_deadline(_ABORT_SECONDS):
            MPI.COMM_WORLD.Abort(exit_code)
