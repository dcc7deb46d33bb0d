"""Exchange: a part of a collective, of one message or a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tfdist.engine.engines import Context


class Exchange(Protocol):
    """A part of a collective.

    Attributes:
      what: description for messages.
      lines: descriptions of the tensors and their operation, one line for each tensor. They must be the same on all
        ranks; exchanges with the same lines are the same.
      shares_memory: True if the ranks of a machine may share memory for it.
    """

    what: str
    lines: Sequence[str]
    shares_memory: bool

    def open(self, context: Context) -> None:
        """Prepare the exchange: the ranks have agreed, and the channel is open. Collective."""

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the arguments. They are TensorFlow's memory: read it only while holding them, and never write to it."""

    def load_nothing(self) -> None:
        """Load a substitute for the arguments: this rank has no data any more."""

    def communicate(self, context: Context) -> None:
        """Carry out the exchange. Collective."""

    def results(self) -> list[np.ndarray]:
        """Return the arrays for TensorFlow."""
