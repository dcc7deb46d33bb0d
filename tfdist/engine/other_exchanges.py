"""All-gather, broadcast, all-to-all …: any function of a channel and arrays as one exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist.engine.exchange import Turn
from tfdist.transport.interfaces import Channel


def holds_objects(dtype: np.dtype) -> bool:
    """Whether a dtype is of strings or objects, whose sizes may differ between ranks."""
    return dtype.kind in "OSU"


def own_copy(value: Any) -> np.ndarray:
    """An array of the value's elements; of a scalar string, which TensorFlow hands out as plain bytes, too."""
    return np.array(value, object if isinstance(value, bytes | str) else None, copy=True, order="C")


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
        self._arrays = [own_copy(a) for a in arrays]

    def load_nothing(self) -> None:
        """Impossible."""
        raise RuntimeError(f"{self.what}: tfdist.join cannot stand in for this rank; give all ranks equal data")

    def communicate(self, turn: Turn) -> None:
        """Arrive and call."""
        with turn.span("wait", self.what):
            sized = self._same_size and not holds_objects(self._arrays[0].dtype)
            turn.arrive(self.what, self._arrays[0].nbytes if sized else 0)
        with turn.span("reduce", self.what):
            self._arrays = self._function(turn.channel, self._arrays)

    def results(self) -> list[np.ndarray]:
        """The function's."""
        return self._arrays
