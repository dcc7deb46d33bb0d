"""Exchange: a part of a collective, one message or a few, and its turn among the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tfdist.engine.engines import AllReduceContext, Choice
from tfdist.transport.interfaces import Channel


class ExchangeContext(AllReduceContext, Protocol):
    """One exchange's place in its collective: how it meets the other ranks.

    Attributes:
      channel: the collective's.
      choice: which engine takes which bucket.
    """

    @property
    def channel(self) -> Channel: ...  # noqa: D102

    @property
    def choice(self) -> Choice: ...  # noqa: D102

    @property
    def key(self) -> int:
        """A number that stands for the exchange, the same on all ranks, and no other's of the group."""

    def arrive(self, what: str, size_bytes: int = 0) -> None:
        """Wait for all ranks."""


class Exchange(Protocol):
    """A part of a collective.

    Attributes:
      what: in words.
      lines: what it exchanges and how, a line for each tensor: must be the same on all ranks, and two exchanges with
        the same lines are the same.
      tuned_tensors: how many it hands to the engine that was found fastest; 0: none.
      addresses: of arrays that it publishes itself, where that engine reaches the other ranks' memory.
    """

    what: str
    lines: Sequence[str]
    tuned_tensors: int
    addresses: int

    def open(self, context: ExchangeContext) -> None:
        """The ranks have agreed, and there is a channel. Collective."""

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the arguments: TensorFlow's memory, which may be read as long as they are held, and never written."""

    def load_nothing(self) -> None:
        """This rank has no arguments any more."""

    def communicate(self, context: ExchangeContext) -> None:
        """Collective."""

    def results(self) -> list[np.ndarray]:
        """What TensorFlow gets."""
