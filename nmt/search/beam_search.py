"""Beam search: extends several partial translations of each sentence together and keeps the best."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from nmt.model.interface import Translator
from nmt.search.search_loop import Forbidden, PartialTranslations, write_words

_BLOCKS = sorted(range(32, 97), key=lambda size: abs(size - 64))


def top_words(
    logits: tf.Tensor, count: int, forbidden: tf.Tensor | None = None, block: int | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the `count` greatest logits of each row with their words, and each row's log(sum(exp(logits))).

    `top_k` examines each value separately; a maximum over a block of values does not. So the k blocks with the greatest
    maxima are selected first. They hold the k greatest values, which are then selected from these blocks.

    Args:
        logits: [rows, vocabulary].
        count: number of words, at least 1; all words if a vocabulary of static size has fewer.
        forbidden: [vocabulary], 0 or minus infinity for a word that may not be chosen; None: all words are allowed. It
            is added to the logits for the choice of words, but not for log(sum(exp(logits))).
        block: number of words in a block; None for about 64. A divisor of the vocabulary's size is best, since other
            sizes cost a copy of the logits; None takes a divisor if there is one.

    Returns:
        logits, [rows, count], greatest first, equal logits in the order of the vocabulary; their words, int32 [rows,
        count]; and log(sum(exp(logits))), [rows, 1]. A logit minus this number is the word's log-probability.
    """
    choice = logits if forbidden is None else logits + forbidden
    values, words = _greatest(choice, count, block)
    most = values[:, :1] if forbidden is None else tf.reduce_max(logits, 1, keepdims=True)
    return values, words, most + tf.math.log(tf.reduce_sum(tf.exp(logits - most), 1, keepdims=True))


def _greatest(logits: tf.Tensor, count: int, block: int | None) -> tuple[tf.Tensor, tf.Tensor]:
    vocabulary = logits.shape[1]
    if vocabulary is None:  # a shortlist: blocks do not pay for a few words
        return tuple(tf.math.top_k(logits, count))
    block = block or next((size for size in _BLOCKS if vocabulary % size == 0), _BLOCKS[0])
    count, blocks = min(count, vocabulary), -(-vocabulary // block)
    if blocks < 2 * count:
        return tuple(tf.math.top_k(logits, count))
    return _of_blocks(logits, count, block, blocks)


def _of_blocks(logits: tf.Tensor, count: int, block: int, blocks: int) -> tuple[tf.Tensor, tf.Tensor]:
    missing = blocks * block - logits.shape[1]
    if missing:
        logits = tf.pad(logits, [[0, 0], [0, missing]], constant_values=-float("inf"))
    grouped = tf.reshape(logits, [-1, blocks, block])
    _, chosen = tf.math.top_k(tf.reduce_max(grouped, 2), count)
    chosen = tf.sort(chosen, 1)  # `top_k` then takes the first of equal values
    values, places = tf.math.top_k(tf.reshape(tf.gather(grouped, chosen, batch_dims=1), [-1, count * block]), count)
    return values, tf.gather(chosen, places // block, batch_dims=1) * block + places % block


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
    """Translate by beam search: keep the `beam_width` best partial translations of each sentence.

    A candidate of log-probability P scores (Wu et al. 2016, arXiv:1609.08144, eq. 14)

        P / ((5 + length) / 6) ** length_penalty_weight
          + coverage_penalty_weight * (sum over source positions of log min(attention so far, 1)).

    Details are as in the TensorFlow NMT tutorial. The length of a beam that finished in an earlier step includes its
    eos. The length of a candidate that ends in this step does not. Only beams that finished earlier get the coverage
    penalty, in which a position without any attention counts as covered. A finished beam still competes, and only eos
    may follow it, at no cost. A sentence is done when all its beams are finished.

    Args:
        translator: a translator with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        max_steps: int32, the most words to write (eos included): a scalar, or [batch] to limit each sentence.
        sos_id: id of the word before the first word.
        eos_id: id of the word after the last word.
        beam_width: number of partial translations kept for each sentence.
        length_penalty_weight: exponent of the length penalty; 0 for none, more favours longer translations.
        coverage_penalty_weight: factor of the coverage penalty; 0 for none, more favours complete translations.
        min_length: the fewest words to write (eos not counted), where `max_steps` allows them.
        unk_id: id of a word that is never written; None allows all words. Other words keep their probabilities.

    Returns:
        ids, int32 [batch, beam, time], best first, with eos from the first eos on and past a sentence's limit; and
        the scores, [batch, beam].
    """
    decoder = translator.decoder(translator.encode(source, source_lengths))
    batch = tf.shape(source_lengths)[0]
    forbidden = Forbidden(eos_id, min_length, unk_id)
    race = _BeamStep(beam_width, length_penalty_weight, coverage_penalty_weight, forbidden)
    positions = tf.shape(source)[0] if coverage_penalty_weight else 0  # source positions whose attention is summed
    start = race.start(batch, sos_id, positions, tf.nest.flatten(decoder.initial_state)[0].dtype)
    return write_words(decoder, tf.broadcast_to(max_steps, [batch]), start, race.advance, beam_width, eos_id)


class _BeamState(NamedTuple):
    """State of each beam.

    Attributes:
        log_probs: log-probabilities, [sentences, beam].
        lengths: numbers of words, the eos of a finished beam included; int32 [sentences, beam].
        attended: sums of the attention weights over the words, [sentences, beam, source time]; source time is 0 without
            a coverage penalty.
    """

    log_probs: tf.Tensor
    lengths: tf.Tensor
    attended: tf.Tensor


class _BeamStep:
    """One step of beam search: extends the beams by a word, scores the candidates and keeps the best.

    It suffices to consider the `width` most probable words and eos after each beam. All words but eos give candidates
    of equal length, so the most probable words score best.
    """

    def __init__(
        self, width: int, length_penalty_weight: float, coverage_penalty_weight: float, forbidden: Forbidden
    ) -> None:
        self._width = width
        self._length_weight = length_penalty_weight
        self._coverage_weight = coverage_penalty_weight
        self._forbidden = forbidden

    def start(self, batch: tf.Tensor, sos_id: int, positions: int | tf.Tensor, dtype: tf.DType) -> PartialTranslations:
        """Return a single empty beam for each sentence."""
        zeros = tf.zeros(tf.stack([batch, 1]), tf.int32)
        none = tf.cast(zeros, dtype)
        account = _BeamState(none, zeros, tf.zeros(tf.stack([batch, 1, positions]), dtype))
        return PartialTranslations(zeros[:, :, None] + sos_id, tf.cast(zeros, tf.bool), none, account)

    def advance(
        self, written: PartialTranslations, logits: tf.Tensor, attention: tf.Tensor | None
    ) -> tuple[PartialTranslations, tf.Tensor]:
        """Extend the beams by one word; see `nmt.search.search_loop.Advance`."""
        sentences, beams = tf.unstack(tf.shape(written.scores))
        finished, before, lengths, attended, ids = (
            tf.reshape(one, tf.concat([[sentences * beams], tf.shape(one)[2:]], 0))
            for one in (written.finished, *written.account, written.ids)
        )
        if self._coverage_weight:
            attended += tf.where(finished[:, None], tf.zeros([], logits.dtype), attention)
        forbidden = self._forbidden.at(written.time, logits)
        words, log_probs = self._candidates(logits, forbidden, finished[:, None])
        log_probs += before[:, None]
        scores = log_probs / self._length_penalty(
            lengths[:, None] + tf.cast(self._grows(words), tf.int32), logits.dtype
        )
        if self._coverage_weight:
            covered = tf.where(finished, self._coverage_penalty(attended), tf.zeros([], scores.dtype))
            scores += covered[:, None]

        each = words.shape[1]
        scores, chosen = tf.math.top_k(tf.reshape(scores, tf.stack([sentences, beams * each])), self._width)
        chosen += tf.range(sentences)[:, None] * (beams * each)
        parents = chosen // each
        words, log_probs = (tf.gather(tf.reshape(one, [-1]), chosen) for one in (words, log_probs))
        was_finished = tf.gather(finished, parents)
        return PartialTranslations(
            ids=tf.concat([tf.gather(ids, parents), words[:, :, None]], 2),
            finished=was_finished | ~self._grows(words),
            scores=scores,
            account=_BeamState(
                log_probs=log_probs,
                lengths=tf.gather(lengths, parents) + tf.cast(~was_finished, tf.int32),
                attended=tf.gather(attended, parents),
            ),
        ), parents

    def _candidates(
        self, logits: tf.Tensor, forbidden: tf.Tensor | None, finished: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return words that may follow each beam, and their log-probabilities, both [beams, at least `width`].

        Words are in the order of the vocabulary, so the first of equally good words wins. `finished` is [beams, 1].
        """
        eos_id = self._forbidden.eos_id
        impossible, certain = tf.constant(-float("inf"), logits.dtype), tf.zeros([], logits.dtype)
        best, words, total = top_words(logits, self._width + 1, forbidden)
        go_on = tf.where(finished | ~self._grows(words), impossible, best - total)
        eos = tf.gather(logits, [eos_id], axis=1) - total
        end = tf.where(finished, certain, eos if forbidden is None else eos + forbidden[eos_id])
        words = tf.concat([tf.fill(tf.shape(end), eos_id), words], 1)
        order = tf.argsort(words, 1)
        log_probs, words = (tf.gather(one, order, batch_dims=1) for one in (tf.concat([end, go_on], 1), words))
        missing = [[0, 0], [0, max(0, self._width - words.shape[1])]]
        if missing[1][1]:  # the vocabulary is smaller than the beam
            words = tf.pad(words, missing, constant_values=eos_id)
            log_probs = tf.pad(log_probs, missing, constant_values=impossible)
        return words, log_probs

    def _grows(self, words: tf.Tensor) -> tf.Tensor:
        return tf.not_equal(words, self._forbidden.eos_id)

    def _length_penalty(self, lengths: tf.Tensor, dtype: tf.DType) -> tf.Tensor | float:
        if not self._length_weight:
            return 1.0
        return tf.pow((5.0 + tf.cast(lengths, dtype)) / 6.0, tf.cast(self._length_weight, dtype))

    def _coverage_penalty(self, attended: tf.Tensor) -> tf.Tensor:
        """Return the penalty, [beams], at most 0. Positions past a sentence's end have no attention and add nothing."""
        share = tf.where(attended > 0, tf.minimum(attended, 1.0), tf.ones_like(attended))
        return self._coverage_weight * tf.reduce_sum(tf.math.log(share), 1)
