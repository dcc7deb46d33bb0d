"""Awake time: the time in which this process could run, by which deadlines count.

All ranks stand still when a laptop is closed, a container is frozen, a virtual machine is moved, or a person stops
them. One rank stands still while a thread holds Python's global lock. A clock counts this time, and would end a healthy
job. A waiting rank reads the clock every few milliseconds, so that a longer pause shows that it stood still.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_SECONDS = 1.0  # counted between two calls of ``passed``, at most


class RunningSeconds:
    """Seconds since the start of a wait in which this process could run.

    Args:
      clock: function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._passed = 0.0

    def passed(self) -> float:
        """Return the seconds until now; call it often."""
        now = self._clock()
        self._passed += min(now - self._last, _LONGEST_SECONDS)
        self._last = now
        return self._passed
