"""Windows: compares the mean of a value over a window of training steps with the means of earlier windows.

One bad window may be noise. Three bad windows in succession are not.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence

STEPS = 20  # of one window
_REMEMBERED = 10  # good windows, with which the next one is compared
_PATIENCE = 3  # bad windows in succession


class Windows:
    """The means of successive windows.

    Args:
      most: function (mean of the first window, means of the last good windows) -> the largest mean that is good.

    Attributes:
      first: mean of the first window; None until it is complete.
      known: means of the last good windows, at most 10.

    ::

        windows = extend.Windows(lambda first, known: 10 * max(known))
    """

    def __init__(self, most: Callable[[float, Sequence[float]], float]) -> None:
        self._most = most
        self.first: float | None = None
        self.known: deque[float] = deque(maxlen=_REMEMBERED)
        self._window: list[float] = []
        self._above: list[float] = []

    def see(self, value: float) -> list[float] | None:
        """Add the value of one step. Return None within a window, and the result of ``see_mean`` at its end."""
        self._window.append(value)
        if len(self._window) < STEPS:
            return None
        mean = statistics.fmean(self._window)
        self._window.clear()
        return self.see_mean(mean)

    def see_mean(self, mean: float) -> list[float] | None:
        """Add the mean of one window.

        Returns:
          None if the mean is good. An empty list if it is too large, but may be noise. The means of the last three
          windows if all of them were too large.
        """
        if self.first is None:
            self.first = mean
        if mean <= self._most(self.first, self.known or [mean]):
            self.known.append(mean)
            self._above.clear()
            return None
        self._above.append(mean)
        if len(self._above) < _PATIENCE:
            return []
        above, self._above = self._above, []
        return above
