"""Questions to other machines: one that does not answer is known for that, and another rank of it is asked."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from tfdist.mpi import _states
from tfdist.transport.state_line import STATE_BYTES, RankState, StateLine, snapshot


class Request:
    """Complete if its rank answers."""

    def __init__(self, answers: bool = True) -> None:
        self.answers = answers


class Comm:
    """Communicator to ranks 2 and 3 of another machine, of which rank 2 is stopped."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def Irecv(self, block: np.ndarray, rank: int, tag: int) -> Request:  # noqa: N802 (mpi4py's names)
        memory = np.zeros([block.size // STATE_BYTES, STATE_BYTES], np.uint8)
        StateLine(memory[-1]).tell("alone", "the evaluation")
        block[:] = snapshot(memory).reshape(-1)
        return Request(answers=rank == 3)

    def Isend(self, block: np.ndarray, rank: int, tag: int) -> Request:  # noqa: N802
        self.asked.append(rank)
        return Request()


def library(complete: Callable[[list[Any]], bool]) -> Any:
    return SimpleNamespace(Request=SimpleNamespace(Testall=complete), Exception=OSError)


def test_another_rank_of_a_silent_machine_is_asked() -> None:
    comm, known, now = Comm(), {2: RankState(), 3: RankState()}, [0.0]
    machine = _states._Machine(comm, (2, 3))

    def complete(requests: list[Any]) -> bool:
        return all(request.answers for request in requests)

    with (
        mock.patch.object(_states, "MPI", library(complete)),
        mock.patch.object(_states.time, "monotonic", lambda: now[0]),
    ):
        for now[0] in (1.0, 2.0):
            machine.read(known, 0.5)
        assert comm.asked == [2] and known[2].answers
        for now[0] in (3.0, 3.1):
            machine.read(known, 0.5)
        assert comm.asked == [2, 3] and known[3].what == "the evaluation" and known[3].asked == 3.0
        for now[0] in (4.0, 4.1, 5.0):
            machine.read(known, 0.5)
        assert comm.asked == [2, 3, 3, 3] and known[2].answers


def test_a_machine_that_does_not_answer() -> None:
    comm, known, now = Comm(), {2: RankState()}, [0.0]
    machine = _states._Machine(comm, (2,))
    with (
        mock.patch.object(_states, "MPI", library(lambda requests: False)),
        mock.patch.object(_states.time, "monotonic", lambda: now[0]),
    ):
        for now[0] in (1.0, 4.0):
            machine.read(known, 0.5)
            assert known[2].answers
        now[0] = 5.0
        machine.read(known, 0.5)
        assert not known[2].answers
