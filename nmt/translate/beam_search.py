"""Beam search: the best of several partial translations of each sentence, extended together."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from nmt.model.interface import Translator
from nmt.translate.search_loop import Forbidden, Written, write_words
from nmt.translate.top_words import top_words


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
    min_length: int = 0,
    unk_id: int | None = None,
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
        min_length: the fewest words to write (eos not counted), where `max_steps` allows them.
        unk_id: a word that is not written; None if all are. What the others get stays as it is.

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
    decoder = translator.decoder(translator.encode(source, source_lengths))
    batch = tf.shape(source_lengths)[0]
    forbidden = Forbidden(eos_id, min_length, unk_id)
    race = _Race(beam_width, length_penalty_weight, coverage_penalty_weight, forbidden)
    positions = tf.shape(source)[0] if coverage_penalty_weight else 0  # whose attention is kept account of
    start = race.start(batch, sos_id, positions, tf.nest.flatten(decoder.initial_state)[0].dtype)
    return write_words(decoder, tf.broadcast_to(max_steps, [batch]), start, race.advance, beam_width, eos_id)


class _Account(NamedTuple):
    """What is known of each beam.

    Attributes:
        log_probs: [sentences, beam].
        lengths: words, the eos of a finished beam included; int32 [sentences, beam].
        attended: [sentences, beam, source time], the sum of the attention's weights over the words; without a coverage
            penalty it has no source positions.
    """

    log_probs: tf.Tensor
    lengths: tf.Tensor
    attended: tf.Tensor


class _Race:
    """The rules by which beams extend, score and replace each other.

    Of what follows a beam, no more than `width` words and eos can be among the best `width` of all: the length that
    scores a candidate is the same for all words but eos, so that the most probable words score best.
    """

    def __init__(
        self, width: int, length_penalty_weight: float, coverage_penalty_weight: float, forbidden: Forbidden
    ) -> None:
        self._width = width
        self._length_weight = length_penalty_weight
        self._coverage_weight = coverage_penalty_weight
        self._forbidden = forbidden

    def start(self, batch: tf.Tensor, sos_id: int, positions: int | tf.Tensor, dtype: tf.DType) -> Written:
        """A single beam of each sentence."""
        zeros = tf.zeros(tf.stack([batch, 1]), tf.int32)
        none = tf.cast(zeros, dtype)
        account = _Account(none, zeros, tf.zeros(tf.stack([batch, 1, positions]), dtype))
        return Written(zeros[:, :, None] + sos_id, tf.cast(zeros, tf.bool), none, account)

    def advance(self, written: Written, logits: tf.Tensor, attention: tf.Tensor | None) -> tuple[Written, tf.Tensor]:
        """Write one word: see `nmt.translate.search_loop.Advance`."""
        eos_id, vocabulary = self._forbidden.eos_id, logits.shape[1]
        impossible = tf.constant(-float("inf"), logits.dtype)
        finished = tf.reshape(written.finished, [-1, 1])
        log_probs, lengths = (tf.reshape(values, [-1, 1]) for values in written.account[:2])
        attended = tf.reshape(written.account.attended, tf.stack([-1, tf.shape(written.account.attended)[2]]))
        if self._coverage_weight:
            attended += tf.where(finished, tf.zeros([], logits.dtype), attention)

        # The candidates of each beam, [beams, candidates]: eos and other words.
        forbidden = self._forbidden.at(written.time, vocabulary, logits.dtype)
        best, words, total = top_words(logits, self._width + 1, forbidden)
        go_on = tf.where(finished | tf.equal(words, eos_id), impossible, best - total) + log_probs
        eos = logits[:, eos_id : eos_id + 1] - total
        if forbidden is not None:
            eos += forbidden[eos_id]
        end = tf.where(finished, tf.zeros([], logits.dtype), eos) + log_probs
        scores = tf.concat([self._end(end, lengths, finished, attended), go_on / self._length_penalty(lengths + 1)], 1)
        candidates = tf.concat([end, go_on], 1)
        words = tf.concat([tf.fill(tf.shape(end), eos_id), words], 1)
        # In the order of the vocabulary: of equal scores the first wins.
        order = tf.argsort(words, 1)
        scores, candidates, words = (tf.gather(one, order, batch_dims=1) for one in (scores, candidates, words))
        missing = self._width - candidates.shape[1]
        if missing > 0:  # of a small vocabulary
            scores, candidates = (
                tf.pad(values, [[0, 0], [0, missing]], constant_values=impossible) for values in (scores, candidates)
            )
            words = tf.pad(words, [[0, 0], [0, missing]], constant_values=eos_id)

        sentences, beams = tf.unstack(tf.shape(written.scores))
        each = candidates.shape[1]
        scores, chosen = tf.math.top_k(tf.reshape(scores, tf.stack([sentences, beams * each])), self._width)
        chosen += tf.range(sentences)[:, None] * (beams * each)
        parents = chosen // each
        words = tf.gather(tf.reshape(words, [-1]), chosen)
        ids = tf.reshape(written.ids, tf.stack([-1, written.time + 1]))
        was_finished = tf.gather(finished[:, 0], parents)
        account = _Account(
            log_probs=tf.gather(tf.reshape(candidates, [-1]), chosen),
            lengths=tf.gather(lengths[:, 0], parents) + tf.cast(~was_finished, tf.int32),
            attended=tf.gather(attended, parents),
        )
        return Written(
            ids=tf.concat([tf.gather(ids, parents), words[:, :, None]], 2),
            finished=was_finished | tf.equal(words, eos_id),
            scores=scores,
            account=account,
        ), parents

    def _end(self, log_probs: tf.Tensor, lengths: tf.Tensor, finished: tf.Tensor, attended: tf.Tensor) -> tf.Tensor:
        """The scores of beams that end, or have ended before, [beams, 1]."""
        scores = log_probs / self._length_penalty(lengths)
        if not self._coverage_weight:
            return scores
        return scores + tf.where(finished, self._coverage_penalty(attended), tf.zeros([], scores.dtype))

    def _length_penalty(self, lengths: tf.Tensor) -> tf.Tensor | float:
        if not self._length_weight:
            return 1.0
        return tf.pow((5.0 + tf.cast(lengths, tf.float32)) / 6.0, self._length_weight)

    def _coverage_penalty(self, attended: tf.Tensor) -> tf.Tensor:
        """[beams, 1], at most 0; positions past a sentence's end have no attention and add nothing."""
        share = tf.where(attended > 0, tf.minimum(attended, 1.0), tf.ones_like(attended))
        return self._coverage_weight * tf.reduce_sum(tf.math.log(share), 1, keepdims=True)
