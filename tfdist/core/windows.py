"""Windows: a figure of training, looked at in windows of steps.

One bad window is noise; three in succession are not.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence

STEPS = 20  # of a window
_REMEMBERED = 10  # windows with which the next is compared
_PATIENCE = 3  # windows in succession


class Windows:
    """The means of successive windows.

    Args:
      most: (the first window's mean, those that are remembered) -> the largest mean that is well.

    Attributes:
      first: the first window's mean; None: there was none.
      known: of the last windows that were well, at most 10.

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
        """Of one step: see ``see_mean``; None within a window, too."""
        self._window.append(value)
        if len(self._window) < STEPS:
            return None
        mean = statistics.fmean(self._window)
        self._window.clear()
        return self.see_mean(mean)

    def see_mean(self, mean: float) -> list[float] | None:
        """Of one window.

        Returns:
          The means of three windows in succession that are more than is well; None: it is well. Empty: it is not, but
          may be noise.
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
