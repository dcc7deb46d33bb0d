"""Step sums: what a collective asks of that which adds up the gradients of several steps before they are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfdist.engine.collective import Collective


class Sums(Protocol):
    """What the steps of an accumulation have brought to one collective."""

    def bring(self, number: int, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        """Add what a step brings to one exchange.

        Returns:
          The mean of the steps, to be exchanged now; None: there are to be more steps.
        """

    def nothing(self, number: int) -> list[np.ndarray] | None:
        """The results of an exchange in a step that is only added: zeros, or no rows; None: it is exchanged."""

    @property
    def due(self) -> bool:
        """Whether the results of this step are to be applied."""


class Accumulation(Protocol):
    """Adds the gradients of several steps up before they are exchanged.

    Attributes:
      steps: how many.
    """

    @property
    def steps(self) -> int: ...  # noqa: D102

    def sums(self, collective: Collective) -> Sums:
        """For a collective that is being built."""

    def built(self, due: tf.Tensor) -> None:
        """In the steps in which this tensor is true there is something to apply."""
