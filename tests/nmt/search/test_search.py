"""Greedy search, beam search, sampling and attention, against plain Python over the NumPy model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.search.beam_search import beam_search, top_words
from nmt.search.forced import forced_decoding
from nmt.search.greedy import greedy_search, sample_search, uniform_draws
from tests.nmt.model import graphs
from tests.nmt.model.graphs import SOS, architecture, v1
from tests.nmt.search.oracle_search import attention, beam, greedy, log_probabilities, sample

LENGTHS = [4, 1, 7, 2, 5, 3]
# Random models have not learned an end. With these words as eos, sentences end at different times.
ENDS = {"plain": 12, "attention": 10, "gru": 8, "gnmt": 10, "transformer": 9, "convs2s": 3}
EOS = ENDS["attention"]
RECURRENT: dict[str, dict[str, Any]] = {
    "plain": dict(num_encoder_layers=2, num_decoder_layers=2),
    "attention": dict(
        attention="scaled_luong",
        encoder_type="bi",
        num_encoder_layers=2,
        num_decoder_layers=2,
    ),
    "gru": dict(unit_type="gru", attention="luong"),
    "gnmt": dict(
        attention="normed_bahdanau",
        attention_architecture="gnmt",
        encoder_type="gnmt",
        num_encoder_layers=2,
        num_decoder_layers=2,
    ),
}
MODELS = RECURRENT | {
    "transformer": dict(family="transformer", norm="pre", positions="learned", max_positions=16, num_decoder_layers=2),
    "convs2s": dict(family="convs2s", num_decoder_layers=2),
}
BEAMS = [
    *itertools.product(["transformer", "convs2s", "plain", "gnmt"], [4], [1.0]),
    *(("attention", 1, 0.0), ("attention", 4, 1.0), ("gru", 4, 0.0)),
]
ATTENTIVE = ["attention", "transformer", "convs2s"]


def source(rows: list[list[int]], extra: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Return padded ids, int32 [time, batch], and lengths, int32 [batch]."""
    return tf.constant(graphs.time_major(rows, EOS, extra)), tf.constant([len(row) for row in rows])


def padded(words: list[int], time: int, eos: int) -> list[int]:
    """Return the words with eos appended up to length `time`."""
    return words + [eos] * (time - len(words))


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_is_the_plain_one(kind: str) -> None:
    """The words are equal, with eos after the end."""
    rows, eos = graphs.sentences(LENGTHS, 11), ENDS[kind]
    with graphs.model(architecture(**MODELS[kind]), weight=2.0) as (translator, session):
        ids = session.run(greedy_search(translator, *source(rows, 2), tf.constant(12), SOS, eos))
        expected = graphs.oracle(translator.architecture, session)
        wanted = [greedy(expected, row, 12, SOS, eos) for row in rows]
    assert ids.dtype == np.int32
    assert ids.shape[1] == max(map(len, wanted))
    assert len(set(map(len, wanted))) > 3
    assert ids.tolist() == [padded(words, ids.shape[1], eos) for words in wanted]


@pytest.mark.parametrize(
    ("kind", "width", "weight"),
    [
        *BEAMS,
        *(
            pytest.param(*one, marks=pytest.mark.long("each width, weight and kind is there once"))
            for one in itertools.product(RECURRENT, [1, 4], [0.0, 1.0])
            if one not in BEAMS
        ),
    ],
)
def test_beam_is_the_plain_one(kind: str, width: int, weight: float) -> None:
    """The words and scores of all beams are equal, best first."""
    rows, eos = graphs.sentences(LENGTHS, 11), ENDS[kind]
    with graphs.model(architecture(**MODELS[kind]), weight=2.0) as (translator, session):
        found = beam_search(translator, *source(rows), tf.constant(9), SOS, eos, width, weight)
        ids, scores = session.run(found)
        expected = graphs.oracle(translator.architecture, session)
        for k, row in enumerate(rows):
            wanted = beam(expected, row, 9, SOS, eos, width, weight)
            assert ids[k].tolist() == [padded(b.words, ids.shape[2], eos) for b in wanted], k
            np.testing.assert_allclose(scores[k], [b.score for b in wanted], rtol=1e-4, err_msg=f"k {k}")


@pytest.mark.parametrize(
    ("coverage", "weight"),
    [
        (0.3, 1.0),
        (2.0, 0.0),
        *(pytest.param(*pair, marks=pytest.mark.long("another pair")) for pair in ((0.3, 0.0), (2.0, 1.0))),
    ],
)
def test_beam_with_coverage_is_the_plain_one(coverage: float, weight: float) -> None:
    """Coverage changes the words of the beams."""
    rows = graphs.sentences(LENGTHS, 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        arguments = (translator, *source(rows, 2), tf.constant(9), SOS, EOS, 4, weight)
        (ids, scores), (plain_ids, _) = session.run([beam_search(*arguments, coverage), beam_search(*arguments)])
        expected = graphs.oracle(translator.architecture, session)
        for k, row in enumerate(rows):
            wanted = beam(expected, row, 9, SOS, EOS, 4, weight, coverage)
            assert ids[k].tolist() == [padded(b.words, ids.shape[2], EOS) for b in wanted], k
            np.testing.assert_allclose(scores[k], [b.score for b in wanted], rtol=1e-4, err_msg=f"k {k}")
    assert ids.shape != plain_ids.shape or (ids != plain_ids).any()


def test_beam_writes_what_is_allowed() -> None:
    """Equal to the plain search; without the limits, forbidden words appear."""
    rows, unk = graphs.sentences(LENGTHS, 11), 7
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        arguments = (translator, *source(rows), tf.constant(9), SOS, EOS, 4, 1.0)
        searches = [beam_search(*arguments, 0.0, 4, unk), beam_search(*arguments)]
        (ids, scores), (free_ids, _) = session.run(searches)
        expected = graphs.oracle(translator.architecture, session)
        for k, row in enumerate(rows):
            wanted = beam(expected, row, 9, SOS, EOS, 4, 1.0, 0.0, 4, unk)
            assert ids[k].tolist() == [padded(b.words, ids.shape[2], EOS) for b in wanted], k
            np.testing.assert_allclose(scores[k], [b.score for b in wanted], rtol=1e-4, err_msg=f"k {k}")
    assert (free_ids == unk).any() and (free_ids[:, :, :4] == EOS).any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_other_searches_write_what_is_allowed(temperature: float) -> None:
    """Greedy search keeps its words up to a forbidden eos; the maximum length beats the minimum length."""
    rows = graphs.sentences(LENGTHS, 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=1.0 if temperature else 2.0) as (translator, session):
        draws = tf.constant(np.random.default_rng(1).random((len(rows), 1, 9)))

        def search(limit: int, *allowed: Any) -> tf.Tensor:
            arguments = (translator, *source(rows), tf.constant(limit), SOS, EOS)
            if temperature:
                return sample_search(*arguments, temperature, draws, *allowed)[:, 0]
            return greedy_search(*arguments, *allowed)

        free = session.run(search(9))
        unk = int(free[free != EOS][0])
        long, known, short = session.run([search(9, 5), search(9, 0, unk), search(3, 5)])
    assert (free[:, :5] == EOS).any()
    assert long.shape[1] > 5 and (long[:, :5] != EOS).all() and (long == EOS).any()
    assert (known != unk).all()
    for row, other in zip(free.tolist(), long.tolist(), strict=True) if not temperature else ():
        until = row.index(EOS) if EOS in row else len(row)
        assert other[:until] == row[:until]
    assert short.shape == (len(rows), 3) and (short != EOS).all()


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_sampling_is_the_plain_one(kind: str, temperature: float) -> None:
    """The same draws give the same words."""
    rows, eos = graphs.sentences(LENGTHS, 11), ENDS[kind]
    draws = np.array([[uniform_draws(3, n, k, 12) for k in range(3)] for n in range(len(rows))])
    with graphs.model(architecture(**MODELS[kind]), weight=1.0) as (translator, session):
        found = sample_search(translator, *source(rows, 2), tf.constant(12), SOS, eos, temperature, tf.constant(draws))
        ids = session.run(found)
        expected = graphs.oracle(translator.architecture, session)
        for k, row in enumerate(rows):
            wanted = [sample(expected, row, draw.tolist(), SOS, eos, temperature) for draw in draws[k]]
            assert ids[k].tolist() == [padded(words, ids.shape[2], eos) for words in wanted], k
            assert len(set(map(tuple, wanted))) > 1, k
    assert ids.dtype == np.int32


def test_words_are_drawn_as_often_as_they_are_probable() -> None:
    """First words of 20,000 translations against softmax(logits / temperature), within 4 standard errors."""
    count, temperature = 20000, 1.5
    with graphs.model(architecture(), weight=1.0) as (translator, session):
        draws = uniform_draws(1, 0, 0, count).reshape(1, count, 1)
        found = sample_search(translator, *source([[4, 5]]), tf.constant(1), SOS, 12, temperature, tf.constant(draws))
        words = session.run(found)[0, :, 0]
        logits, _ = graphs.oracle(translator.architecture, session).start([4, 5]).step(SOS)
    wanted = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    frequencies = np.bincount(words, minlength=len(wanted)) / count
    assert (np.abs(frequencies - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / count)).all()


def test_a_low_temperature_is_greedy() -> None:
    rows = graphs.sentences(LENGTHS, 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        arguments = (translator, *source(rows), tf.constant(9), SOS, EOS)
        draws = tf.constant(np.random.default_rng(1).random((len(rows), 2, 9)))
        best, drawn = session.run([greedy_search(*arguments), sample_search(*arguments, 1e-4, draws)])
    assert drawn[:, 0].tolist() == drawn[:, 1].tolist() == best.tolist()


def test_draws_are_streams() -> None:
    """Each translation has its own stream; fewer steps give the beginning of the stream."""
    first = uniform_draws(1, 2, 3, 50)
    assert first.tolist()[:20] == uniform_draws(1, 2, 3, 20).tolist()
    assert first.min() >= 0 and first.max() < 1
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2), (2**40, 2, 3)):
        assert not np.isin(uniform_draws(*other, 50), first).any(), other


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("attention", dict(attention="luong")),
        ("attention", dict(attention="normed_bahdanau")),
        ("transformer", {}),
        ("convs2s", {}),
    ],
)
def test_attention_is_the_plain_one(kind: str, changes: dict[str, Any]) -> None:
    """Weights for the words of greedy search; 0 past the source's end, with the sum 1."""
    rows = graphs.sentences(LENGTHS, 11)
    shape = architecture(**{**MODELS[kind], **changes})
    with graphs.model(shape, weight=2.0) as (translator, session):
        some = source(rows, 2)
        ids = greedy_search(translator, *some, tf.constant(9), SOS, EOS)
        words, (logarithms, weights) = session.run([ids, tuple(forced_decoding(translator, *some, SOS, ids))])
        expected = graphs.oracle(translator.architecture, session)
        assert weights.shape == (len(rows), words.shape[1], max(LENGTHS) + 2)
        np.testing.assert_allclose(weights.sum(2), 1, rtol=1e-5)
        for k, row in enumerate(rows):
            assert (weights[k, :, len(row) :] == 0).all(), k
            wanted = attention(expected, row, words[k].tolist(), SOS)
            np.testing.assert_allclose(weights[k, :, : len(row)], wanted, rtol=1e-3, atol=1e-5, err_msg=f"k {k}")
            plain = log_probabilities(expected, row, words[k].tolist(), SOS)
            np.testing.assert_allclose(logarithms[k], plain, rtol=1e-3, atol=1e-5, err_msg=f"k {k}")


def test_given_words_without_attention() -> None:
    with graphs.model(architecture(), weight=2.0) as (translator, session):
        forced = forced_decoding(translator, *source([[3, 5]]), SOS, tf.constant([[4, EOS]]))
        assert forced.weights is None
        expected = log_probabilities(graphs.oracle(translator.architecture, session), [3, 5], [4, EOS], SOS)
        np.testing.assert_allclose(session.run(forced.log_probabilities)[0], expected, rtol=1e-4)


def test_beam_of_one_is_greedy() -> None:
    """With and without penalties."""
    rows = graphs.sentences(LENGTHS, 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        best = session.run(greedy_search(translator, *source(rows), tf.constant(9), SOS, EOS))
        for weights in ((0.0, 0.0), (0.7, 0.0), (0.7, 0.4)):
            ids, _ = session.run(beam_search(translator, *source(rows), tf.constant(9), SOS, EOS, 1, *weights))
            assert ids[:, 0].tolist() == best.tolist(), weights


def test_a_wider_beam_than_the_vocabulary() -> None:
    """The first step has fewer candidates than beams."""
    rows = graphs.sentences([3, 2], 11)
    with graphs.model(architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        ids, scores = session.run(beam_search(translator, *source(rows), tf.constant(4), SOS, EOS, 20))
    assert ids.shape[:2] == (2, 20)
    assert np.isfinite(scores).all()
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize(
    "weights",
    [*(pytest.param(w, marks=pytest.mark.long("fewer penalties")) for w in ((0.0, 0.0), (1.0, 0.0))), (1.0, 0.5)],
)
@pytest.mark.parametrize("kind", ATTENTIVE)
def test_a_sentence_does_not_depend_on_its_batch(kind: str, weights: tuple[float, float]) -> None:
    """A sentence alone, padded or with others has the same result, each with its own limit."""
    rows = graphs.sentences(LENGTHS, 11)
    with graphs.model(architecture(**MODELS[kind]), weight=2.0) as (translator, session):
        ids = v1.placeholder(tf.int32, [None, None])
        lengths = v1.placeholder(tf.int32, [None])
        searches = [
            beam_search(translator, ids, lengths, 2 * lengths, SOS, EOS, 3, *weights),
            greedy_search(translator, ids, lengths, 2 * lengths, SOS, EOS),
        ]

        def translate(some: list[list[int]], extra: int) -> Any:
            padded_ids = graphs.time_major(some, EOS, extra)
            return session.run(searches, {ids: padded_ids, lengths: [len(row) for row in some]})

        (all_beams, all_scores), all_greedy = translate(rows, 3)
        for k, row in enumerate(rows):
            (beams, scores), greedy_ids = translate([row], 0)
            time = beams.shape[2]
            assert all_beams[k, :, :time].tolist() == beams[0].tolist(), k
            assert (all_beams[k, :, time:] == EOS).all(), k
            np.testing.assert_allclose(all_scores[k], scores[0], rtol=1e-5, err_msg=f"k {k}")
            assert all_greedy[k].tolist() == padded(greedy_ids[0].tolist(), all_greedy.shape[1], EOS), k


def test_top_words_are_the_greatest() -> None:
    """Blocks give the order of a sort, with the first of equal words first, also if the last block is incomplete."""
    rng = np.random.default_rng(4)
    logits = rng.integers(0, 40, [7, 301]).astype(np.float32)  # many are equal
    never = np.where(rng.random(301) < 0.2, -np.inf, 0).astype(np.float32)
    cases = [(None, 7, 3), (None, 43, 3), (None, 4, 9), (None, 300, 5), (never, 7, 6), (None, None, 400)]
    with tf.Graph().as_default(), v1.Session() as session:
        constant = tf.constant(logits)
        found = session.run(
            [
                top_words(constant, count, None if forbidden is None else tf.constant(forbidden), block)
                for forbidden, block, count in cases
            ]
        )
    for (forbidden, _, count), (values, words, total) in zip(cases, found, strict=True):
        choice = logits if forbidden is None else logits + forbidden
        wanted = np.argsort(-choice, axis=1, kind="stable")[:, :count]
        assert words.tolist() == wanted.tolist(), count
        assert (values == np.take_along_axis(choice, wanted, 1)).all(), count
        np.testing.assert_allclose(total[:, 0], np.log(np.exp(logits.astype(np.float64)).sum(1)), rtol=1e-6)


def test_no_steps_allowed() -> None:
    """The searches return no words and do not fail."""
    rows = graphs.sentences([3, 2], 11)
    with graphs.model(architecture(**MODELS["plain"])) as (translator, session):
        ids = session.run(greedy_search(translator, *source(rows), tf.constant(0), SOS, EOS))
        beams, _ = session.run(beam_search(translator, *source(rows), tf.constant(0), SOS, EOS, 2))
        draws = tf.zeros([2, 3, 0], tf.float64)
        samples = session.run(sample_search(translator, *source(rows), tf.constant(0), SOS, EOS, 1.0, draws))
    assert ids.shape == (2, 0)
    assert samples.shape == (2, 3, 0)
    assert beams.shape == (2, 2, 0)
