"""Plateau decay: lowers the learning rate when a metric of the development text has stopped improving.

After `patience` evaluations in succession without improvement, the rate is multiplied by `factor` and the count starts
again. The state is a variable of the training graph. A checkpoint is written before its evaluation, so it holds the
state before that evaluation. A run that continues from it repeats the evaluation and gets the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from nmt.core.ranks import Ranks
from nmt.train.evaluation import PERPLEXITY, Evaluation

v1 = tf.compat.v1
Say = Callable[[str], None]


@dataclass(frozen=True)
class PlateauSettings:
    """Settings of the plateau decay.

    Attributes:
        metric: name of the metric on the development text; `PERPLEXITY` improves downwards, all others upwards.
        factor: factor of the learning rate, between 0 and 1.
        patience: number of evaluations in succession without improvement.
    """

    metric: str
    factor: float = 0.5
    patience: int = 2

    def __str__(self) -> str:
        """Return the settings as text for the log."""
        return f"times {self.factor:g} after {self.patience} evaluation(s) without a better dev {self.metric}"


class Decay(Protocol):
    """Lowers the learning rate according to the results of evaluations."""

    def lowered(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate, a scalar, with all decays so far."""

    def look(
        self, session: Any, evaluation: Evaluation, ranks: Ranks, say: Say, *, perplexities: bool, scores: bool
    ) -> None:
        """Update the decay after an evaluation of perplexities, scores or both. Collective: every rank calls."""


class NoDecay:
    """Decay that leaves the learning rate unchanged."""

    def lowered(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the rate."""
        return rate

    def look(
        self, session: Any, evaluation: Evaluation, ranks: Ranks, say: Say, *, perplexities: bool, scores: bool
    ) -> None:
        """Do nothing."""


class Plateau:
    """Plateau decay; its state is the variable `plateau`, float64 [3].

    The elements are the best value, the number of evaluations since then, and the number of decays.

    Args:
        settings: settings of the decay.
    """

    def __init__(self, settings: PlateauSettings) -> None:
        self._settings = settings
        start = v1.constant_initializer([-np.inf, 0.0, 0.0])
        self._state = v1.get_variable("plateau", [3], tf.float64, start, trainable=False)
        self._new = v1.placeholder(tf.float64, [3])
        self._assign = self._state.assign(self._new, read_value=False)

    def lowered(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate, a scalar, with all decays so far."""
        return rate * tf.cast(tf.pow(tf.constant(self._settings.factor, tf.float64), self._state[2]), rate.dtype)

    def look(
        self, session: Any, evaluation: Evaluation, ranks: Ranks, say: Say, *, perplexities: bool, scores: bool
    ) -> None:
        """Update the state after an evaluation of perplexities, scores or both.

        Collective: every rank calls. Rank 0 has the metric's value and the restored state, so its new state counts.
        """
        settings, falls = self._settings, self._settings.metric == PERPLEXITY
        if not (perplexities if falls else scores):
            return
        figure = evaluation.newest(settings.metric)
        best, looks, lowered = session.run(self._state)
        looks += 1
        if (-figure if falls else figure) > best:
            best, looks = (-figure if falls else figure), 0.0
        elif looks >= settings.patience:
            looks, lowered = 0.0, lowered + 1
            say(
                f"# No better dev {settings.metric} than {abs(best):.2f} in {settings.patience} evaluation(s): the "
                f"learning rate is multiplied by {settings.factor:g}"
            )
        session.run(self._assign, {self._new: ranks.broadcast(np.array([best, looks, lowered]))})
