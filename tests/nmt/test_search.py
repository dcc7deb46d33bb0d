"""Greedy and beam search against plain Python ones over the NumPy model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.translate.search import beam_search, greedy_search
from tests.nmt import graphs
from tests.nmt.graphs import SOS, architecture, v1
from tests.nmt.oracle_search import beam, greedy

LENGTHS = [4, 1, 7, 2, 5, 3]
# Random models do not know what an end is; with these words as eos, sentences end at different times.
ENDS = {"plain": 12, "attention": 10}
EOS = ENDS["attention"]
MODELS: dict[str, dict[str, Any]] = {
    "plain": dict(num_encoder_layers=2, num_decoder_layers=2),
    "attention": dict(
        attention="scaled_luong",
        encoder_type="bi",
        num_encoder_layers=2,
        num_decoder_layers=2,
    ),
}


def source(rows: list[list[int]], extra: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Padded ids and lengths."""
    return tf.constant(graphs.time_major(rows, EOS, extra)), tf.constant([len(row) for row in rows])


def padded(words: list[int], time: int, eos: int) -> list[int]:
    """Filled up with eos."""
    return words + [eos] * (time - len(words))


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_is_the_plain_one(kind: str) -> None:
    """Same words, eos after the end."""
    rows, eos = graphs.sentences(LENGTHS, 11), ENDS[kind]
    with graphs.model(architecture(**MODELS[kind]), weight=2.0) as (translator, session):
        ids = session.run(greedy_search(translator, *source(rows, 2), tf.constant(12), SOS, eos))
        expected = graphs.oracle(translator.architecture, session)
        wanted = [greedy(expected, row, 12, SOS, eos) for row in rows]
    assert ids.dtype == np.int32
    assert ids.shape[1] == max(map(len, wanted))
    assert len(set(map(len, wanted))) > 3
    assert ids.tolist() == [padded(words, ids.shape[1], eos) for words in wanted]


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_beam_is_the_plain_one(kind: str, width: int, weight: float) -> None:
    """Same words and scores of every beam, best first."""
    rows, eos = graphs.sentences(LENGTHS, 11), ENDS[kind]
    with graphs.model(architecture(**MODELS[kind]), weight=2.0) as (translator, session):
        found = beam_search(translator, *source(rows), tf.constant(9), SOS, eos, width, weight)
        ids, scores = session.run(found)
        expected = graphs.oracle(translator.architecture, session)
        for k, row in enumerate(rows):
            wanted = beam(expected, row, 9, SOS, eos, width, weight)
            assert ids[k].tolist() == [padded(b.words, ids.shape[2], eos) for b in wanted]
            np.testing.assert_allclose(scores[k], [b.score for b in wanted], rtol=1e-4)


def test_beam_of_one_is_greedy() -> None:
    """With and without a length penalty."""
    rows = graphs.sentences(LENGTHS, 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        best = session.run(greedy_search(translator, *source(rows), tf.constant(9), SOS, EOS))
        for weight in (0.0, 0.7):
            ids, _ = session.run(beam_search(translator, *source(rows), tf.constant(9), SOS, EOS, 1, weight))
            assert ids[:, 0].tolist() == best.tolist()


def test_a_wider_beam_than_the_vocabulary() -> None:
    """The first step has fewer candidates than beams."""
    rows = graphs.sentences([3, 2], 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        ids, scores = session.run(beam_search(translator, *source(rows), tf.constant(4), SOS, EOS, 20))
    assert ids.shape[:2] == (2, 20)
    assert np.isfinite(scores).all()
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_sentence_does_not_depend_on_its_batch(weight: float) -> None:
    """Alone, padded or among others, each with a limit of its own."""
    rows = graphs.sentences(LENGTHS, 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        ids = v1.placeholder(tf.int32, [None, None])
        lengths = v1.placeholder(tf.int32, [None])
        searches = [
            beam_search(translator, ids, lengths, 2 * lengths, SOS, EOS, 3, weight),
            greedy_search(translator, ids, lengths, 2 * lengths, SOS, EOS),
        ]

        def translate(some: list[list[int]], extra: int) -> Any:
            padded_ids = graphs.time_major(some, EOS, extra)
            return session.run(searches, {ids: padded_ids, lengths: [len(row) for row in some]})

        (all_beams, all_scores), all_greedy = translate(rows, 3)
        for k, row in enumerate(rows):
            (beams, scores), greedy_ids = translate([row], 0)
            time = beams.shape[2]
            assert all_beams[k, :, :time].tolist() == beams[0].tolist()
            assert (all_beams[k, :, time:] == EOS).all()
            np.testing.assert_allclose(all_scores[k], scores[0], rtol=1e-5)
            assert all_greedy[k].tolist() == padded(greedy_ids[0].tolist(), all_greedy.shape[1], EOS)


def test_no_steps_allowed() -> None:
    """Nothing is written, and nothing fails."""
    rows = graphs.sentences([3, 2], 11)
    with graphs.model(architecture(**MODELS["plain"])) as (translator, session):
        ids = session.run(greedy_search(translator, *source(rows), tf.constant(0), SOS, EOS))
        beams, _ = session.run(beam_search(translator, *source(rows), tf.constant(0), SOS, EOS, 2))
    assert ids.shape == (2, 0)
    assert beams.shape == (2, 2, 0)


def test_a_beam_needs_a_width() -> None:
    """The message names the value."""
    with graphs.model(architecture()) as (translator, _), pytest.raises(ValueError, match="beam_width is 0"):
        beam_search(translator, *source([[3]]), tf.constant(4), SOS, EOS, 0)
