"""Plateau decay: the learning rate is lowered when a figure of the development text has stopped getting better.

After `patience` looks in succession that found nothing better, the rate is multiplied by `factor`, and they are counted
anew. What has been seen is a variable of the training graph: a checkpoint is written before its figures are known, and
has the state before them, and a run that goes on from it evaluates that step again and comes to the same.
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
    """When a rate is lowered, and by how much.

    Attributes:
        metric: the figure of the development text: that of the perplexity, which falls, or one that rises.
        factor: what the rate is multiplied by, between 0 and 1.
        patience: looks in succession without a better figure.
    """

    metric: str
    factor: float = 0.5
    patience: int = 2

    def __str__(self) -> str:
        """In words."""
        return f"times {self.factor:g} after {self.patience} evaluation(s) without a better dev {self.metric}"


class Decay(Protocol):
    """What lowers the rate by what is found in evaluations."""

    def lowered(self, rate: tf.Tensor) -> tf.Tensor:
        """The rate, a scalar, as often lowered as was due so far."""

    def look(
        self, session: Any, evaluation: Evaluation, ranks: Ranks, say: Say, *, perplexities: bool, scores: bool
    ) -> None:
        """After an evaluation that was due, with these figures. Collective: every rank calls."""


class NoDecay:
    """Leaves the rate as it is."""

    def lowered(self, rate: tf.Tensor) -> tf.Tensor:
        """The rate."""
        return rate

    def look(
        self, session: Any, evaluation: Evaluation, ranks: Ranks, say: Say, *, perplexities: bool, scores: bool
    ) -> None:
        """Nothing."""


class Plateau:
    """Creates the variable `plateau`, float64 [3]: the best figure, looks since then, how often the rate was lowered.

    Args:
        settings: when, and by how much.
    """

    def __init__(self, settings: PlateauSettings) -> None:
        self._settings = settings
        start = v1.constant_initializer([-np.inf, 0.0, 0.0])
        self._state = v1.get_variable("plateau", [3], tf.float64, start, trainable=False)
        self._new = v1.placeholder(tf.float64, [3])
        self._assign = self._state.assign(self._new, read_value=False)

    def lowered(self, rate: tf.Tensor) -> tf.Tensor:
        """The rate, a scalar, as often lowered as was due so far."""
        return rate * tf.cast(tf.pow(tf.constant(self._settings.factor, tf.float64), self._state[2]), rate.dtype)

    def look(
        self, session: Any, evaluation: Evaluation, ranks: Ranks, say: Say, *, perplexities: bool, scores: bool
    ) -> None:
        """After an evaluation that was due, with these figures.

        Collective: every rank calls; the figure and the state of rank 0, which has evaluated and restored, count.
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
