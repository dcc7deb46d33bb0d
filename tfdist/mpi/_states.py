"""MPI states: the state of each rank, in shared memory of its host. Ranks that wait read it.

A rank that waits asks another host by a message. One of that host's ranks answers with the states of all of them.
"""

from __future__ import annotations

import contextlib
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
from tfdist.transport.stall_detection import Request
from tfdist.transport.state_line import STATE_BYTES, Held, RankState, StateLine, snapshot

_LOOK_SECONDS = 1.0  # largest age of the script's line
_ANSWER_SECONDS = 0.25  # between two looks for questions of other machines
_ASK_SECONDS, _SOON_SECONDS = 0.5, 0.05  # between two questions to a machine
_PATIENCE_SECONDS = 1.5  # wait for an answer until the next rank of that machine is asked
_UNANSWERED_SECONDS = 3.5  # longer than the waits for two ranks, because one may be stopped
_QUESTION, _ANSWER = 0, 1  # tags


class MpiStates:
    """The states of all ranks; see ``state_line.States``.

    Each rank of a machine has a line in their shared memory. Collective: all ranks.

    Args:
      comm: communicator of all ranks, which nothing else uses.
      machine: communicator of this machine's ranks.
      recorder: flight recorder, which records the threads' stacks.

    Attributes:
      near: the other ranks of this machine.
      hosts: name of each rank's host.
    """

    def __init__(self, comm: Any, machine: Any, recorder: FlightRecorder) -> None:
        self.comm = comm
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
        self._memory = memory
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
        self._remote = [_Machine(comm, ranks) for ranks in others]
        self._sent: list[tuple[Any, np.ndarray]] = []  # answers under way
        self._main = threading.main_thread().ident or 0
        self._over = threading.Event()
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._look, name="tfdist states", daemon=True)
        self._thread.start()

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
            process = self._processes[rank].state() if rank in self._processes else ""
            state = line.read()
            known = self._known[rank]
            if state is not None:
                self._known[rank] = dataclasses.replace(state, host=known.host, process=process, asked=asked)
            elif process != known.process:  # (a process that was killed while it wrote leaves an incomplete line)
                self._known[rank] = dataclasses.replace(known, process=process)
        for machine in () if self._over.is_set() else self._remote:
            machine.read(self._known, _SOON_SECONDS if soon else _ASK_SECONDS)

    def _look(self) -> None:
        """Write the program's line each second, and answer other machines."""
        seconds = _ANSWER_SECONDS if self._remote else _LOOK_SECONDS
        next_look = 0.0
        while not self._over.wait(seconds):
            self._answer()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_SECONDS
                self._line.tell_line(program_line(self._main))
                self._recorder.look()

    def _answer(self) -> None:
        status = MPI.Status()
        with contextlib.suppress(MPI.Exception):  # a connection is broken
            while self._remote and self.comm.Iprobe(tag=_QUESTION, status=status):
                self.comm.Recv(np.empty(0, np.uint8), status.Get_source(), _QUESTION)
                states = snapshot(self._memory)
                self._sent.append((self.comm.Isend(states, status.Get_source(), _ANSWER), states))
            self._sent = [sent for sent in self._sent if not sent[0].Test()]

    def stop(self) -> None:
        """Ask no more, and end the thread: at Python's end it would stop between a question and its answer."""
        self._over.set()
        self._thread.join(_UNANSWERED_SECONDS)

    def close(self) -> Request:
        """Return a request that is complete when all ranks have stopped, and have their answers."""
        return _Closing(self)

    def closed(self) -> bool:
        """Answer other machines. Return whether no message of this rank is under way."""
        self._answer()
        return not self._sent and all(machine.answered(self._known) for machine in self._remote)


class _Closing:
    """A request that is complete when all ranks have closed their states."""

    def __init__(self, states: MpiStates) -> None:
        self._states = states
        self._all: Any = None
        self._until = time.monotonic() + _UNANSWERED_SECONDS  # a thread that did not end may have taken a question

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        closed = self._states.closed() or time.monotonic() > self._until
        if closed and self._all is None:
            self._all = self._states.comm.Ibarrier()
        return self._all is not None and bool(self._all.Test())


class _Machine:
    """Another machine: one of its ranks answers for all its ranks."""

    def __init__(self, comm: Any, ranks: tuple[int, ...]) -> None:
        self._comm = comm
        self._ranks = ranks
        self._asked = ranks[0]
        self._questions: dict[int, tuple[list[Any], np.ndarray, float]] = {}  # open ones: requests, memory, since when
        self._next = 0.0
        self._unanswered_since: float | None = None
        self._looked: dict[int, float] = {}  # by that machine's clock, which may differ from ours

    def read(self, known: dict[int, RankState], pause_seconds: float) -> None:
        """Put new answers into ``known``, and ask the next question after a pause."""
        self.answered(known, pause_seconds)
        now = time.monotonic()
        if self._unanswered_since is not None and now - self._unanswered_since > _UNANSWERED_SECONDS:
            for rank in self._ranks:
                known[rank] = dataclasses.replace(known[rank], answers=False)
        if now > self._next:
            with contextlib.suppress(MPI.Exception):  # the connection is broken
                self._ask(now)

    def answered(self, known: dict[int, RankState], pause_seconds: float = 0.0) -> bool:
        """Put new answers into ``known``. Return whether no question is open."""
        for asked, (requests, block, since) in list(self._questions.items()):
            if self._complete(requests):
                del self._questions[asked]
                self._asked, self._next, self._unanswered_since = asked, time.monotonic() + pause_seconds, None
                for rank, line in zip(self._ranks, block.reshape(-1, STATE_BYTES), strict=True):
                    state = StateLine(line).read()
                    if state is not None:
                        known[rank] = self._by_our_clock(rank, dataclasses.replace(state, asked=since), known[rank])
        return not self._questions

    @staticmethod
    def _complete(requests: list[Any]) -> bool:
        try:
            return bool(MPI.Request.Testall(requests))
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
            answer = self._comm.Irecv(block, self._asked, _ANSWER)
            question = self._comm.Isend(np.empty(0, np.uint8), self._asked, _QUESTION)
            self._questions[self._asked] = [question, answer], block, now
            self._next = now + _PATIENCE_SECONDS
            self._unanswered_since = self._unanswered_since or now
