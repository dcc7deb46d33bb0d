"""Exchange: a part of a collective, of one message or a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tfdist.engine.choice import Choice
from tfdist.engine.engines import AllReduceContext
from tfdist.transport.interfaces import Channel


class ExchangeContext(AllReduceContext, Protocol):
    """What an exchange gets from its collective to meet the other ranks.

    Attributes:
      channel: channel of the collective.
      choice: choice of the engine for each bucket.
    """

    @property
    def channel(self) -> Channel: ...  # noqa: D102

    @property
    def choice(self) -> Choice: ...  # noqa: D102

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks of the channel, by their numbers in the job."""

    def key(self, size: int | None = None) -> int:
        """Return a number that identifies the exchange in its group, the same on all ranks.

        Args:
          size: size of this step's tensors, if it changes from step to step: each size has a number of its own.
        """

    def arrive(self, what: str, size_bytes: int = 0) -> None:
        """Wait for all ranks."""


class Exchange(Protocol):
    """A part of a collective.

    Attributes:
      what: description for messages.
      lines: descriptions of the tensors and their operation, one line for each tensor. They must be the same on all
        ranks; exchanges with the same lines are the same.
      tuned: True if the ranks of a machine may share memory for it.
    """

    what: str
    lines: Sequence[str]
    tuned: bool

    def open(self, context: ExchangeContext) -> None:
        """Prepare the exchange: the ranks have agreed, and the channel is open. Collective."""

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the arguments. They are TensorFlow's memory: read it only while holding them, and never write to it."""

    def load_nothing(self) -> None:
        """Load a substitute for the arguments: this rank has no data any more."""

    def communicate(self, context: ExchangeContext) -> None:
        """Carry out the exchange. Collective."""

    def results(self) -> list[np.ndarray]:
        """Return the arrays for TensorFlow."""
