"""Being asked to stop: batch systems such as Slurm send SIGTERM some time before they end a job."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Protocol

import numpy as np

from nmt.ranks import Ranks


class Stop(Protocol):
    """Whether training is to end with the step that has just been done."""

    def asked(self) -> bool:
        """The same answer on all ranks. Collective: every rank calls, after each step."""


class NoStop:
    """Nobody asks."""

    def asked(self) -> bool:
        """Never."""
        return False


class StopBySignal:
    """SIGTERM to any rank stops all of them after one and the same step.

    The handler replaces the one before, in the main thread alone, until `close`.

    Args:
        ranks: who agrees; every step they add up one number.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._signalled = np.zeros(1, np.int64)
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._handle)

    def asked(self) -> bool:
        """Whether any rank has got the signal."""
        return bool(self._ranks.sum(self._signalled)[0])

    def close(self) -> None:
        """Gives the signal back."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signalled[0] = 1
