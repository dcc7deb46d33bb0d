"""Ensembles, against means over NumPy models; and checkpoints of ensembles."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import restore_below
from nmt.core.errors import InputError
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.initializers import initializer
from nmt.options.config import Config
from nmt.search.beam_search import beam_search
from nmt.search.ensemble import Ensemble, EnsembleWeights
from nmt.search.forced import forced_decoding
from nmt.search.greedy import greedy_search
from nmt.search.translation_model import TranslationModel
from tests.nmt.model import graphs
from tests.nmt.model.graphs import EOS, SOS, v1
from tests.nmt.model.oracle_model import OracleModel, log_softmax
from tests.nmt.search.oracle_search import attention, beam, greedy, log_probabilities
from tests.nmt.search.test_search import MODELS
from tests.nmt.search.test_translation_model import LINES, model_of


class Mean:
    """The mean of several NumPy models, or of their decodings."""

    def __init__(self, members: list[Any]) -> None:
        self._members = members

    @property
    def weights(self) -> np.ndarray:
        mean: np.ndarray = np.mean([one.weights for one in self._members], 0)
        return mean

    def start(self, source: Any) -> Mean:
        return Mean([one.start(source) for one in self._members])

    def step(self, word: int) -> tuple[np.ndarray, Mean]:
        logits, after = zip(*(one.step(word) for one in self._members), strict=True)
        return np.log(np.mean([np.exp(log_softmax(one)) for one in logits], 0)), Mean(list(after))


def test_search_is_that_of_the_mean() -> None:
    """Two different models; alone they write other translations."""
    lengths = [4, 1, 7, 2, 5, 3]
    rows, shape = graphs.sentences(lengths, 11), graphs.architecture(**MODELS["attention"])
    with tf.Graph().as_default(), v1.Session() as session:
        source = tf.constant(graphs.time_major(rows, EOS)), tf.constant(lengths)
        members, oracles = [], []
        for seed in (5, 6):
            with v1.variable_scope(f"model_{seed}"):
                members.append(LSTMTranslator(shape, initializer("uniform", 2.0, seed=seed)))
        session.run(v1.global_variables_initializer())
        for seed in (5, 6):
            scope = f"model_{seed}/"
            variables = v1.global_variables(scope)
            values = session.run(variables)
            named = {v.op.name.removeprefix(scope): value for v, value in zip(variables, values, strict=True)}
            oracles.append(OracleModel(shape, named))
        together: Any = Ensemble(members)
        written = greedy_search(together, *source, tf.constant(9), SOS, EOS)
        alone = greedy_search(members[0], *source, tf.constant(9), SOS, EOS)
        looked = tuple(forced_decoding(together, *source, SOS, written))
        best = beam_search(together, *source, tf.constant(9), SOS, EOS, 3, 1.0)
        (beams, scores), words, first, (logarithms, weights) = session.run([best, written, alone, looked])
    mean: Any = Mean(oracles)
    for k, row in enumerate(rows):
        plain = greedy(mean, row, 9, SOS, EOS)
        assert words[k].tolist()[: len(plain)] == plain, k
        found = attention(mean, row, plain, SOS)
        np.testing.assert_allclose(weights[k, : len(plain), : len(row)], found, rtol=1e-3, atol=1e-5, err_msg=f"{k}")
        mine = log_probabilities(mean, row, plain, SOS)
        np.testing.assert_allclose(logarithms[k, : len(plain)], mine, rtol=1e-3, atol=1e-5, err_msg=f"{k}")
        wanted = beam(mean, row, 9, SOS, EOS, 3, 1.0)
        assert [one[: len(b.words)] for one, b in zip(beams[k].tolist(), wanted, strict=True)] == [
            b.words for b in wanted
        ], k
        np.testing.assert_allclose(scores[k], [b.score for b in wanted], rtol=1e-4, err_msg=f"k {k}")
    assert first.shape != words.shape or (first != words).any()


def test_the_same_weights_twice_are_one_model(toy: Any, tmp_path: Path) -> None:
    """Both are read from one checkpoint without scopes; a checkpoint of another shape is refused."""
    one, settings = model_of(toy, beam_width=3), Config(beam_width=3)
    path = str(tmp_path / "translate.ckpt-1")
    with one.session.graph.as_default():
        v1.train.Saver().save(one.session, path, write_meta_graph=False)
    weights = EnsembleWeights(2, toy.architecture)
    ensemble = TranslationModel(weights, toy.src_vocab, toy.tgt_vocab, settings)
    for scope in weights.scopes:
        restore_below(weights.session, scope, path)
    assert ensemble.translate(LINES) == one.translate(LINES)
    wider = EnsembleWeights(2, dataclasses.replace(toy.architecture, num_units=9))
    with pytest.raises(InputError, match=r"translate.ckpt-1 does not fit the model, where .*use the flags"):
        restore_below(wider.session, wider.scopes[1], path)
