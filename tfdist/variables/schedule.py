"""Schedule: after which steps the ranks compare what they hold: soon at first, and later at little cost."""

from __future__ import annotations

import math

OFF, AUTO = "off", "auto"
_SHARE = 0.004  # of a step, at most, once the first steps are over
LARGEST = 63  # what a rank asks for that has no measurement: of two as a power


class Schedule:
    """After steps 1, 2, 4, 8, … as long as that is more often than what it costs allows.

    All ranks come to the same: what a rank has measured goes with each comparison, and the largest counts.

    Args:
      setting: see ``TFDIST_CHECK``: ``auto``, or a number of steps.
    """

    def __init__(self, setting: str) -> None:
        self._every = 0 if setting == AUTO else int(setting)
        self._next = 1 + (self._every or 1)

    def due(self, step: int) -> bool:
        """Whether what the ranks hold before a step, which counts from 1, is to be compared in it."""
        return step >= self._next

    def compared(self, step: int, powers: list[int]) -> None:
        """It has been; the ranks ask for so many steps until the next comparison, as powers of two."""
        self._next = step + (self._every or min(max(1, step - 1), 1 << max(powers)))


def wanted(seconds: float, step_seconds: float) -> int:
    """How many steps there are to be from one comparison to the next, as a power of two.

    Args:
      seconds: that a comparison takes this rank.
      step_seconds: that a step takes it; 0: not known yet.
    """
    if not step_seconds:
        return LARGEST
    return min(LARGEST, max(0, math.ceil(math.log2(max(1.0, seconds / (_SHARE * step_seconds))))))
