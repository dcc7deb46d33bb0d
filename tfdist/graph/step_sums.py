"""Step sums: interfaces by which a collective adds up the gradients of several steps before it exchanges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfdist.engine.collective import Collective


class Sums(Protocol):
    """Sums of one collective's arrays over the steps of an accumulation."""

    def bring(self, number: int, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        """Add a step's arrays to the sums of one exchange.

        Returns:
          The mean of the steps, to be exchanged now; None: more steps are to be added.
        """

    def nothing(self, number: int) -> list[np.ndarray] | None:
        """Return an exchange's results in a step that is only added: zeros, or no rows; None if it is exchanged."""

    @property
    def due(self) -> bool:
        """Whether the results of this step are to be applied."""


class Accumulation(Protocol):
    """Adds up the gradients of several steps before they are exchanged.

    Attributes:
      steps: number of steps.
    """

    @property
    def steps(self) -> int: ...  # noqa: D102

    def sums(self, collective: Collective) -> Sums:
        """Return the sums for a collective under construction."""

    def due_in(self, due: tf.Tensor) -> None:
        """Take a bool tensor that is true in the steps whose result is applied."""
