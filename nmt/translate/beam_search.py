"""Beam search: the best of several partial translations of each sentence, extended together."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from nmt.model.interface import Translator
from nmt.translate.search_loop import Forbidden, Written, write_words

_BLOCKS = sorted(range(32, 97), key=lambda size: abs(size - 64))


def top_words(
    logits: tf.Tensor, count: int, forbidden: tf.Tensor | None = None, block: int | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The `count` greatest logits of each row, and all rows' logarithms of summed exponentials.

    A selection of k of n values looks at each value by itself; the greatest of a block of values does not. So the k
    blocks with the greatest maxima are selected first, which hold the k greatest values, and then k of their values.

    Args:
        logits: [rows, vocabulary].
        count: at least 1; of fewer words, all are returned, if the graph knows how many there are.
        forbidden: [vocabulary], added to the logits before words are chosen, but not before they are summed up: 0, or
            minus infinity for a word that may not be chosen. None: all may be.
        block: words that are compared at once; None for about 64, and a divisor of the vocabulary if there is one:
            others cost a copy of the logits.

    Returns:
        logits [rows, count], greatest first, and of equal ones the first; their words, int32 [rows, count]; and
        log(sum(exp(logits))), [rows, 1], by which a logit is greater than the word's log-probability.
    """
    choice = logits if forbidden is None else logits + forbidden
    values, words = _greatest(choice, count, block)
    most = values[:, :1] if forbidden is None else tf.reduce_max(logits, 1, keepdims=True)
    return values, words, most + tf.math.log(tf.reduce_sum(tf.exp(logits - most), 1, keepdims=True))


def _greatest(logits: tf.Tensor, count: int, block: int | None) -> tuple[tf.Tensor, tf.Tensor]:
    vocabulary = logits.shape[1]
    if vocabulary is None:  # of a shortlist, which is short
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
    chosen = tf.sort(chosen, 1)  # so that of equal values the first is taken
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
        return Written(
            ids=tf.concat([tf.gather(ids, parents), words[:, :, None]], 2),
            finished=was_finished | ~self._grows(words),
            scores=scores,
            account=_Account(
                log_probs=log_probs,
                lengths=tf.gather(lengths, parents) + tf.cast(~was_finished, tf.int32),
                attended=tf.gather(attended, parents),
            ),
        ), parents

    def _candidates(
        self, logits: tf.Tensor, forbidden: tf.Tensor | None, finished: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What may follow each beam: words, and their log-probabilities, [beams, at least `width`].

        In the order of the vocabulary, since of equally good ones the first is to win. `finished` is [beams, 1].
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
        if missing[1][1]:  # of a small vocabulary
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
        """[beams], at most 0; positions past a sentence's end have no attention and add nothing."""
        share = tf.where(attended > 0, tf.minimum(attended, 1.0), tf.ones_like(attended))
        return self._coverage_weight * tf.reduce_sum(tf.math.log(share), 1)
