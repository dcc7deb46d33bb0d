"""Plateau decay: lowers the learning rate when a metric of the development text has stopped improving.

After `patience` evaluations in succession without improvement, the rate is multiplied by `factor` and the count starts
again. The state is a variable of the training graph. A checkpoint is written before its evaluation, so it holds the
state before that evaluation. A run that continues from it repeats the evaluation and gets the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.core.ranks import Ranks
from nmt.options.config import Config
from nmt.train.evaluation import PERPLEXITY, Evaluation

v1 = tf.compat.v1
Say = Callable[[str], None]


def told(config: Config) -> str:
    """Return the plateau decay of a run as text for the log."""
    times, patience = f"times {config.plateau_factor:g}", config.plateau_patience
    return f"{times} after {patience} evaluation(s) without a better dev {_metric(config)}"


def _metric(config: Config) -> str:
    """Return the metric on the development text; `PERPLEXITY` improves downwards, all others upwards."""
    return PERPLEXITY if config.plateau_metric == "perplexity" else config.metric_names[0]


class Plateau:
    """Plateau decay; its state is the variable `plateau`, float64 [3].

    The elements are the best value, the number of evaluations since then, and the number of decays.

    Args:
        config: options of the run.
    """

    def __init__(self, config: Config) -> None:
        self._metric, self._factor, self._patience = _metric(config), config.plateau_factor, config.plateau_patience
        start = v1.constant_initializer([-np.inf, 0.0, 0.0])
        self._state = v1.get_variable("plateau", [3], tf.float64, start, trainable=False)
        self._new = v1.placeholder(tf.float64, [3])
        self._assign = self._state.assign(self._new, read_value=False)

    def lowered(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate, a scalar, with all decays so far."""
        return rate * tf.cast(tf.pow(tf.constant(self._factor, tf.float64), self._state[2]), rate.dtype)

    def look(
        self, session: Any, evaluation: Evaluation, ranks: Ranks, say: Say, *, perplexities: bool, scores: bool
    ) -> None:
        """Update the state after an evaluation of perplexities, scores or both.

        Collective: every rank calls. Rank 0 has the metric's value and the restored state, so its new state counts.
        """
        metric, falls = self._metric, self._metric == PERPLEXITY
        if not (perplexities if falls else scores):
            return
        figure = evaluation.newest(metric)
        best, looks, lowered = session.run(self._state)
        looks += 1
        if (-figure if falls else figure) > best:
            best, looks = (-figure if falls else figure), 0.0
        elif looks >= self._patience:
            looks, lowered = 0.0, lowered + 1
            say(
                f"# No better dev {metric} than {abs(best):.2f} in {self._patience} evaluation(s): the "
                f"learning rate is multiplied by {self._factor:g}"
            )
        session.run(self._assign, {self._new: ranks.broadcast(np.array([best, looks, lowered]))})
