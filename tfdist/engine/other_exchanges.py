"""All-gather, broadcast, all-to-all …: any function of a channel and arrays as one exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfdist.engine.exchange import Turn
from tfdist.transport.interfaces import Channel


class CollectiveCall:
    """See ``exchange.Exchange``. Any function of a channel and arrays, after all have arrived.

    Args:
      what: in words.
      lines: of its tensors.
      function: (channel, arrays) -> arrays; collective.
      same_size: all ranks must bring as many bytes.
    """

    tuned_tensors = 0

    def __init__(
        self,
        what: str,
        lines: Sequence[str],
        function: Callable[[Channel, Sequence[np.ndarray]], list[np.ndarray]],
        same_size: bool,
    ) -> None:
        self.what = what
        self.lines = lines
        self._function = function
        self._same_size = same_size

    def open(self, turn: Turn) -> None:
        """Nothing to prepare."""

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy in."""
        self._arrays = [np.array(a, copy=True, order="C") for a in arrays]

    def load_nothing(self) -> None:
        """Impossible."""
        raise RuntimeError(f"{self.what}: tfdist.join cannot stand in for this rank; give all ranks equal data")

    def communicate(self, turn: Turn) -> None:
        """Arrive and call."""
        with turn.span("wait", self.what):
            turn.arrive(self.what, self._arrays[0].nbytes if self._same_size else 0)
        with turn.span("reduce", self.what):
            self._arrays = self._function(turn.channel, self._arrays)

    def results(self) -> list[np.ndarray]:
        """The function's."""
        return self._arrays
