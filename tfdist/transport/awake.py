"""Awake time: what deadlines count. A clock runs on while nobody could have come, and then ends a healthy job.

All ranks stand still when a laptop is closed, a container is frozen, a virtual machine is moved, or a person stops
them; one stands still while a thread holds Python. Whoever waits looks at the time every few milliseconds: a longer
pause is one of these.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_SECONDS = 1.0  # between two looks: more is not counted


class AwakeSeconds:
    """Seconds since it was made, in which this process was able to look.

    Args:
      clock: of all seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._passed = 0.0

    def passed(self) -> float:
        """How many there are by now; to be asked often."""
        now = self._clock()
        self._passed += min(now - self._last, _LONGEST_SECONDS)
        self._last = now
        return self._passed
