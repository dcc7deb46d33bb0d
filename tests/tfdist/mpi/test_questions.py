"""Questions to other machines: a question without an answer blocks no rank."""

from __future__ import annotations

import threading
import time
from unittest import mock

from tfdist.mpi import _states
from tfdist.transport.state_line import RankState


class Machine:
    """A machine whose library call returns when the test sets ``returns``."""

    def __init__(self) -> None:
        self.returns, self.asked = threading.Event(), threading.Event()

    def read(self, known: dict[int, RankState], pause_seconds: float) -> None:
        self.asked.set()
        self.returns.wait(30)

    def does_not_answer(self, known: dict[int, RankState]) -> None:
        known[1] = RankState(answers=False)


def test_a_question_that_does_not_return_is_no_answer() -> None:
    machine, known = Machine(), {1: RankState()}
    with mock.patch.object(_states, "_UNANSWERED_SECONDS", 0.2):
        questions = _states._Questions([machine], known)  # type: ignore[list-item]
        start = time.monotonic()
        questions.ask(0.01)
        assert machine.asked.wait(5)
        assert known[1].answers
        time.sleep(0.3)
        questions.ask(0.01)
        assert not known[1].answers
        assert time.monotonic() - start < 5
        machine.returns.set()
        questions.close()
