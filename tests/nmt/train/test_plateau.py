"""Lowering the learning rate when evaluations do not improve, also in a run that continues."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.options.config import Config
from nmt.train.evaluation import PERPLEXITY, Evaluation
from nmt.train.plateau import Plateau
from tests.nmt.core.thread_ranks import outcomes

v1 = tf.compat.v1


class Told(Evaluation):
    """An evaluation with a given figure."""

    def __init__(self, figure: float, metric: str) -> None:
        self._figure, self._metric = figure, metric

    def newest(self, metric: str) -> float:
        return self._figure if metric == self._metric else math.nan


@pytest.mark.parametrize(
    ("metric", "figures"),
    [("bleu", [1.0, 3.0, 2.0, 3.0, 2.5, 2.9, 3.1, 0.0]), (PERPLEXITY, [9.0, 5.0, 7.0, 5.0, 6.0, 5.5, 4.0, 8.0])],
)
def test_two_ranks_lower_the_rate_after_two_looks_in_vain(metric: str, figures: list[float]) -> None:
    """The ranks restart before each evaluation, and only rank 0 has the saved state."""
    expected = [1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01, 0.01]
    looked = {"perplexities": metric == PERPLEXITY, "scores": metric == "bleu"}
    other = {"perplexities": not looked["perplexities"], "scores": not looked["scores"]}

    def rank(ranks: Any) -> tuple[list[float], list[str]]:
        said: list[str] = []
        with tf.Graph().as_default() as graph:
            plateau = Plateau(Config(plateau_metric="score" if metric == "bleu" else "perplexity", plateau_factor=0.1))
            rate = plateau.lowered(tf.constant(1.0))
            (state,) = v1.global_variables()
            initialise = v1.global_variables_initializer()
        rates, kept = [], None
        for figure in figures:
            session = v1.Session(graph=graph)  # a new run
            session.run(initialise)
            if kept is not None and ranks.rank == 0:
                session.run(state.initializer, {state.initializer.inputs[1]: kept})
            evaluation = Evaluation() if ranks.rank else Told(figure, metric)
            plateau.look(session, evaluation, ranks, said.append, **other)  # an evaluation of another kind
            plateau.look(session, evaluation, ranks, said.append, **looked)
            kept = session.run(state)
            rates.append(float(session.run(rate)))
        return rates, said

    for number, (rates, said) in enumerate(outcomes(2, rank)):
        np.testing.assert_allclose(rates, expected, rtol=1e-6, err_msg=str(number))
        if number == 0:
            best = "5.00" if metric == PERPLEXITY else "3.00"
            told = f"# No better dev {metric} than {best} in 2 evaluation(s): the learning rate is multiplied by 0.1"
            assert said == [told] * 2
