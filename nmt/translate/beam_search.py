"""Beam search: the best of several partial translations of each sentence, extended together.

A single loop inside the graph. A sentence stops by itself, so that what it gets does not depend on the sentences it
shares a batch with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.interface import Translator
from nmt.translate.search import any_batch, repeated


def beam_search(
    translator: Translator,
    source: tf.Tensor,
    source_lengths: tf.Tensor,
    max_steps: tf.Tensor,
    sos_id: int,
    eos_id: int,
    beam_width: int,
    length_penalty_weight: float = 0.0,
    coverage_penalty_weight: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Keep the `beam_width` best partial translations of each sentence.

    A candidate of log-probability P scores (Wu et al. 2016, arXiv:1609.08144, eq. 14)

        P / ((5 + length) / 6) ** length_penalty_weight
          + coverage_penalty_weight * (sum over source positions of log min(attention so far, 1)).

    As in the TensorFlow NMT tutorial, the length that scores a candidate does not count the eos that it ends
    with, while that of a beam finished earlier does; the coverage counts for beams finished earlier only, and
    there a position without any attention counts as covered. A finished beam stays in the race and can only be
    followed by eos, at no cost. A sentence is done when all its beams are finished.

    Args:
        translator: made with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        max_steps: int32, the most words to write (eos included): a scalar, or [batch] to limit each sentence.
        sos_id: the word before the first.
        eos_id: the word after the last.
        beam_width: partial translations kept for each sentence.
        length_penalty_weight: 0 compares plain log-probabilities, more favours longer translations.
        coverage_penalty_weight: 0 does not look at coverage, more favours translations of the whole source.

    Returns:
        ids, int32 [batch, beam, time], best first, eos from the first eos on and past a sentence's limit; and
        the scores, [batch, beam].

    Raises:
        ValueError: beam_width below 1, or a coverage penalty without attention.
    """
    if beam_width < 1:
        raise ValueError(f"beam_width is {beam_width}; it must be at least 1")
    if coverage_penalty_weight and not translator.architecture.has_attention:
        raise ValueError(f"coverage_penalty_weight is {coverage_penalty_weight}; without attention it must be 0")
    memory = repeated(translator.encode(source, source_lengths), beam_width)
    decoder = translator.decoder(memory)
    batch = tf.shape(source_lengths)[0]
    limits = tf.broadcast_to(max_steps, [batch])
    race = _Race(beam_width, length_penalty_weight, coverage_penalty_weight, eos_id)
    positions = tf.shape(source)[0] if coverage_penalty_weight else 0  # whose attention is kept account of

    def body(time: tf.Tensor, done: tf.Tensor, beams: _Beams, state: list[tf.Tensor]) -> tuple[Any, ...]:
        written = tf.reshape(beams.ids[:, :, -1], [-1])
        logits, new, weights = decoder.step(tf.nest.pack_sequence_as(decoder.initial_state, state), written)
        log_probs = tf.reshape(tf.nn.log_softmax(logits), tf.stack([batch, beam_width, logits.shape[1]]))
        attention = tf.reshape(weights, tf.shape(beams.attended)) if coverage_penalty_weight else beams.attended
        beams, parents = race.advance(beams, log_probs, attention, done)
        done |= tf.reduce_all(beams.finished, 1) | (time + 1 >= limits)
        flat_parents = tf.reshape(parents + tf.range(batch)[:, None] * beam_width, [-1])
        return time + 1, done, beams, [tf.gather(value, flat_parents) for value in tf.nest.flatten(new)]

    start = tf.nest.flatten(decoder.initial_state)
    pair, triple = tf.TensorShape([None, None]), tf.TensorShape([None, None, None])
    first = race.start(batch, sos_id, positions, memory.outputs.dtype)
    _, _, beams, _ = tf.while_loop(
        lambda time, done, *_: ~tf.reduce_all(done),
        body,
        [tf.constant(0), limits <= 0, first, start],
        shape_invariants=[
            tf.TensorShape([]),
            tf.TensorShape([None]),
            _Beams(triple, pair, pair, pair, pair, triple),
            any_batch(start),
        ],
    )
    # A sentence that reached its limit is filled up with eos by the steps that the others still take.
    return beams.ids[:, :, 1:], beams.scores


class _Beams(NamedTuple):
    """The partial translations of all sentences, best first; all but `ids` and `attended` are [batch, beam].

    `ids` is [batch, beam, 1 + time]: the translations themselves, rearranged in each step, which costs less
    than tracing parents back in a second loop. `lengths` counts words, the eos of a finished beam included.
    `attended` is [batch, beam, source time], the sum of the attention's weights over the words; without a
    coverage penalty it has no source positions.
    """

    ids: tf.Tensor
    log_probs: tf.Tensor
    scores: tf.Tensor
    lengths: tf.Tensor
    finished: tf.Tensor
    attended: tf.Tensor


class _Race:
    """The rules by which beams extend, score and replace each other."""

    def __init__(self, width: int, length_penalty_weight: float, coverage_penalty_weight: float, eos_id: int) -> None:
        self._width = width
        self._length_weight = length_penalty_weight
        self._coverage_weight = coverage_penalty_weight
        self._eos_id = eos_id

    def start(self, batch: tf.Tensor, sos_id: int, positions: int | tf.Tensor, dtype: tf.DType) -> _Beams:
        """One beam that counts; the others are copies of it and must not win."""
        log_probs = tf.tile(tf.constant([[0.0] + [-float("inf")] * (self._width - 1)], dtype), [batch, 1])
        zeros = tf.zeros_like(log_probs, tf.int32)
        attended = tf.zeros(tf.stack([batch, self._width, positions]), dtype)
        return _Beams(zeros[:, :, None] + sos_id, log_probs, log_probs, zeros, tf.cast(zeros, tf.bool), attended)

    def advance(
        self, beams: _Beams, log_probs: tf.Tensor, attention: tf.Tensor, done: tf.Tensor
    ) -> tuple[_Beams, tf.Tensor]:
        """Write one word.

        Args:
            beams: before it.
            log_probs: of each next word, [batch, beam, vocabulary].
            attention: the weights that these came with, of the shape of `beams.attended`.
            done: [batch], sentences whose beams stay as they are, followed by eos.

        Returns:
            the beams after it, and which beam each comes from, int32 [batch, beam].
        """
        vocabulary = log_probs.shape[2]
        is_eos = tf.equal(tf.range(vocabulary), self._eos_id)
        only_eos = tf.where(is_eos, tf.zeros([], log_probs.dtype), log_probs.dtype.min)
        log_probs = tf.where(beams.finished[:, :, None], only_eos, log_probs) + beams.log_probs[:, :, None]
        grows = ~beams.finished
        lengths = beams.lengths[:, :, None] + tf.cast(grows[:, :, None] & ~is_eos, tf.int32)
        attended = beams.attended + tf.where(grows[:, :, None], attention, tf.zeros([], attention.dtype))
        scores = log_probs / self._length_penalty(lengths, log_probs.dtype)
        scores += tf.where(grows, tf.zeros([], scores.dtype), self._coverage_penalty(attended))[:, :, None]

        all_candidates = tf.stack([-1, self._width * vocabulary])
        best, chosen = tf.math.top_k(tf.reshape(scores, all_candidates), self._width)
        stay = done[:, None]
        parents = tf.where(stay, tf.range(self._width), chosen // vocabulary)
        words = tf.where(stay, self._eos_id, chosen % vocabulary)

        def of_parent(values: tf.Tensor) -> tf.Tensor:
            return tf.gather(values, parents, batch_dims=1)

        chosen_log_probs = tf.gather(tf.reshape(log_probs, all_candidates), chosen, batch_dims=1)
        was_finished = of_parent(beams.finished)
        return _Beams(
            ids=tf.concat([of_parent(beams.ids), words[:, :, None]], 2),
            log_probs=tf.where(stay, beams.log_probs, chosen_log_probs),
            scores=tf.where(stay, beams.scores, best),
            lengths=of_parent(beams.lengths) + tf.cast(~was_finished & ~stay, tf.int32),
            finished=was_finished | tf.equal(words, self._eos_id),
            attended=of_parent(attended),
        ), parents

    def _length_penalty(self, lengths: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.pow((5.0 + tf.cast(lengths, dtype)) / 6.0, tf.cast(self._length_weight, dtype))

    def _coverage_penalty(self, attended: tf.Tensor) -> tf.Tensor:
        """[batch, beam], at most 0; positions past a sentence's end have no attention and add nothing."""
        share = tf.where(attended > 0, tf.minimum(attended, 1.0), tf.ones_like(attended))
        return self._coverage_weight * tf.reduce_sum(tf.math.log(share), 2)
