"""Stop signals: a run that receives one writes a checkpoint and ends. Schedulers such as Slurm send it before a kill.

SIGTERM is the usual stop signal, and Ctrl-C sends SIGINT. SIGUSR1 has the same effect; it is for launchers such as Open
MPI's, which end the ranks at once on the other two signals.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from nmt.core.ranks import Ranks

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopBySignal:
    """SIGTERM, SIGUSR1 or SIGINT to any rank stops all ranks after the same step; a second SIGINT ends at once.

    The request travels with the exchanges of a step. The handlers replace earlier handlers until `close`; they are
    installed only if the object is created in the main thread.

    Args:
        ranks: the ranks that train.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        ranks.ask_to_stop(False)
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}

    def asked(self) -> bool:
        """Return whether any rank has received a signal; after each step, the answer is the same on all ranks."""
        return self._ranks.asked_to_stop()

    def close(self) -> None:
        """Restore the earlier signal handlers."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._ranks.ask_to_stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if self._ranks.rank == 0:  # all ranks receive Ctrl-C; a handler must not write to Python's streams
                os.write(2, b"# Ctrl-C: saves after this step, and ends; a second one ends at once\n")
