"""Stop signals: a run that is told to end saves a checkpoint first; Slurm and its like send one in time.

SIGTERM is the usual one, and SIGINT comes of Ctrl-C; SIGUSR1 means the same, for launchers (Open MPI's) that end the
ranks at once on the others.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Protocol

from nmt.core.ranks import Ranks

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Stop(Protocol):
    """Whether training is to end with the step that has just been done."""

    def asked(self) -> bool:
        """The same answer on all ranks, after each step."""


class NoStop:
    """Nobody asks."""

    def asked(self) -> bool:
        """Never."""
        return False


class StopBySignal:
    """SIGTERM, SIGUSR1 or SIGINT to any rank stops all of them after one and the same step; a second SIGINT at once.

    The ranks tell each other with what they exchange in a step anyway. The handlers replace those before, in the main
    thread alone, until `close`.

    Args:
        ranks: who tells whom.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        ranks.ask_to_stop(False)
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}

    def asked(self) -> bool:
        """Whether any rank has got the signal."""
        return self._ranks.asked_to_stop()

    def close(self) -> None:
        """Gives the signals back."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._ranks.ask_to_stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if self._ranks.rank == 0:  # all have got it; no stream of Python's may be written to in a handler
                os.write(2, b"# Ctrl-C: saves after this step, and ends; a second one ends at once\n")
