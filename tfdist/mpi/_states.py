"""MPI states: the state of each rank, in shared memory of its machine. Ranks that wait read it; nothing is sent."""

from __future__ import annotations

import dataclasses
import platform
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tfdist.core.program_line import program_line
from tfdist.core.system import memory_folder
from tfdist.mpi._shared_memory import shared_memory
from tfdist.processes.process_state import GONE, Process
from tfdist.record.flight_recorder import FlightRecorder
from tfdist.transport.errors import SetupError
from tfdist.transport.state_line import STATE_BYTES, Held, RankState, StateLine

_LOOK_SECONDS = 1.0  # largest age of the script's line
_ANSWER_SECONDS = 0.25  # between calls of MPI, in which this process answers other machines
_ASK_SECONDS, _SOON_SECONDS = 0.5, 0.05  # between two questions to a machine
_PATIENCE_SECONDS = 1.5  # wait for an answer until the next rank of that machine is asked
_UNANSWERED_SECONDS = 3.5  # longer than the waits for two ranks, because one may be stopped


class MpiStates:
    """The states of all ranks; see ``state_line.States``.

    Each rank of a machine has a line in their shared memory. Other machines can read all lines from any of these ranks.
    Collective: all ranks.

    Args:
      comm: communicator of all ranks, which nothing else uses.
      machine: communicator of this machine's ranks.
      recorder: flight recorder, which records the threads' stacks.

    Attributes:
      near: the other ranks of this machine.
      hosts: name of each rank's host.
    """

    def __init__(self, comm: Any, machine: Any, recorder: FlightRecorder) -> None:
        self._comm = comm
        self._recorder = recorder
        self.rank = comm.rank
        self.size = comm.size
        told: list[tuple[str, list[int]]] = comm.allgather((platform.node(), machine.allgather(comm.rank)))
        self.hosts: Sequence[str] = [name for name, _ in told]
        names = [name if len({*self.hosts}) > 1 else "" for name in self.hosts]
        machines = [ranks for _, ranks in told]
        memory, reason = shared_memory(
            machine, STATE_BYTES, list(dict.fromkeys([memory_folder(), tempfile.gettempdir()]))
        )
        if memory is None:
            raise SetupError(f"rank {comm.rank} on {platform.node()}: no memory that the ranks could share: {reason}")
        lines = dict(zip(machines[comm.rank], map(StateLine, memory), strict=True))
        self._line = lines.pop(comm.rank)
        self._line.tell_line("")  # this rank is alive
        self._lines = lines
        self.near = tuple(lines)
        processes = dict(zip(machines[comm.rank], machine.allgather(Process.own()), strict=True))
        # (Processes of another namespace, or that Linux hides, cannot be seen.)
        self._processes = {rank: processes[rank] for rank in lines if processes[rank].state() != GONE}
        machine.Barrier()
        self._known = {rank: RankState(host=names[rank]) for rank in range(comm.size) if rank != comm.rank}
        others = sorted({tuple(ranks) for ranks in machines} - {tuple(machines[comm.rank])})
        self._window = MPI.Win.Create(memory, 1, MPI.INFO_NULL, comm) if others else None
        if self._window is not None:
            self._window.Lock_all()
        self._remote = [_Machine(self._window, ranks) for ranks in others]
        self._main = threading.main_thread().ident or 0
        self._over = threading.Event()
        self._reading = threading.Lock()
        threading.Thread(target=self._look, name="tfdist states", daemon=True).start()
        self._questions = _Questions(self._remote, self._known)

    def tell(self, kind: str, what: str) -> None:
        self._line.tell(kind, what)

    def tell_held(self, held: Held | None) -> None:
        self._line.tell_held(held)

    def tell_saves(self, saves: bytes) -> None:
        self._line.tell_saves(saves)

    def tell_position(self, position: int) -> None:
        self._line.tell_position(position)

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        if self._reading.acquire(blocking=False):  # else another thread of this rank is reading
            try:
                self._read(soon)
            finally:
                self._reading.release()
        return self._known

    def _read(self, soon: bool) -> None:
        for rank, line in self._lines.items():
            asked = time.monotonic()
            state = line.read()
            process = self._processes[rank].state() if rank in self._processes else ""
            known = self._known[rank]
            if state is not None:
                self._known[rank] = dataclasses.replace(state, host=known.host, process=process, asked=asked)
            elif process != known.process:  # (a process that was killed while it wrote leaves an incomplete line)
                self._known[rank] = dataclasses.replace(known, process=process)
        self._questions.ask(_SOON_SECONDS if soon else _ASK_SECONDS)

    def _look(self) -> None:
        """Write the program's line each second, and let MPI answer other machines."""
        seconds = _ANSWER_SECONDS if self._remote else _LOOK_SECONDS
        next_look = 0.0
        while not self._over.wait(seconds):
            if self._remote:
                self._comm.Iprobe()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_SECONDS
                self._line.tell_line(program_line(self._main))
                self._recorder.look()

    def close(self) -> None:
        """Stop writing the program's line: this rank's program is over."""
        self._over.set()
        self._questions.close()

    def free(self) -> None:
        """Free the memory, when no rank waits any more. Blocks until all ranks have come. Collective: all ranks."""
        if self._window is not None:
            self._window.Unlock_all()
            self._window.Free()
        self._lines, self._remote = {}, []


class _Questions:
    """Asks other machines in a thread: a question may block if no rank answers, as the first one does in Open MPI.

    Args:
      machines: machines to ask.
      known: states by rank, which the answers update.
    """

    def __init__(self, machines: Sequence[_Machine], known: dict[int, RankState]) -> None:
        self._machines, self._known = machines, known
        self._wanted = threading.Event()
        self._pause_seconds = _ASK_SECONDS
        self._over = False
        self._asking: tuple[_Machine, float] | None = None  # the machine, and when it was asked
        self._thread = threading.Thread(target=self._work, name="tfdist questions", daemon=True)
        if machines:
            self._thread.start()

    def ask(self, pause_seconds: float) -> None:
        """Ask all machines that have not been asked for ``pause_seconds``. Does not wait for the answers."""
        self._pause_seconds = pause_seconds
        self._wanted.set()
        asking = self._asking
        if asking and time.monotonic() - asking[1] > _UNANSWERED_SECONDS:
            asking[0].does_not_answer(self._known)

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._over:
                return
            for machine in self._machines:
                self._asking = machine, time.monotonic()
                machine.read(self._known, self._pause_seconds)
                self._asking = None

    def close(self) -> None:
        """Stop asking."""
        self._over = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(_UNANSWERED_SECONDS)


class _Machine:
    """Another machine: one of its ranks answers for all its ranks."""

    def __init__(self, window: Any, ranks: tuple[int, ...]) -> None:
        self._window = window
        self._ranks = ranks
        self._asked = ranks[0]
        self._questions: dict[int, tuple[Any, np.ndarray, float]] = {}  # MPI may still write to unanswered ones
        self._next = 0.0
        self._unanswered_since: float | None = None
        self._looked: dict[int, float] = {}  # by that machine's clock, which may differ from ours

    def read(self, known: dict[int, RankState], pause_seconds: float) -> None:
        """Put new answers into ``known``, and ask the next question after a pause."""
        now = time.monotonic()
        for asked, (request, block, since) in list(self._questions.items()):
            if self._answered(request):
                del self._questions[asked]
                self._asked, self._next, self._unanswered_since = asked, now + pause_seconds, None
                for rank, line in zip(self._ranks, block.reshape(-1, STATE_BYTES), strict=True):
                    state = StateLine(line).read()
                    if state is not None:
                        known[rank] = self._by_our_clock(rank, dataclasses.replace(state, asked=since), known[rank])
        if self._unanswered_since and now - self._unanswered_since > _UNANSWERED_SECONDS:
            self.does_not_answer(known)
        if now > self._next:
            self._ask(now)

    def does_not_answer(self, known: dict[int, RankState]) -> None:
        """Note in ``known`` that no rank of this machine has answered."""
        for rank in self._ranks:
            known[rank] = dataclasses.replace(known[rank], answers=False)

    @staticmethod
    def _answered(request: Any) -> bool:
        try:
            return bool(request.Test())
        except MPI.Exception:  # the connection is broken
            return False

    def _by_our_clock(self, rank: int, state: RankState, before: RankState) -> RankState:
        news = self._looked.get(rank) != state.looked
        self._looked[rank] = state.looked
        return dataclasses.replace(state, host=before.host, looked=time.monotonic() if news else before.looked)

    def _ask(self, now: float) -> None:
        """Ask a rank that has no open question; the same rank again as long as it answers."""
        start = self._ranks.index(self._asked)
        free = [rank for rank in self._ranks[start:] + self._ranks[:start] if rank not in self._questions]
        if free:
            self._asked = free[0]
            block = np.zeros(STATE_BYTES * len(self._ranks), np.uint8)
            self._questions[self._asked] = self._window.Rget(block, self._asked), block, now
            self._next = now + _PATIENCE_SECONDS
            self._unanswered_since = self._unanswered_since or now
