"""Greedy search and sampling: writes a translation word by word, each the most probable one or a random one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.model.interface import StepDecoder, Translator
from nmt.search.search_loop import Forbidden, PartialTranslations, write_words

# (logits [sentences * translations, vocabulary], translations so far) -> next words, int32 [sentences, translations]
Choice = Callable[[tf.Tensor, PartialTranslations], tf.Tensor]


def greedy_search(
    translator: Translator,
    source: tf.Tensor,
    source_lengths: tf.Tensor,
    max_steps: tf.Tensor,
    sos_id: int,
    eos_id: int,
    min_length: int = 0,
    unk_id: int | None = None,
) -> tf.Tensor:
    """Translate by greedy search: write the most probable next word until it is eos.

    Args:
        translator: a translator with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        max_steps: int32, the most words to write (eos included): a scalar, or [batch] to limit each sentence.
        sos_id: id of the word before the first word.
        eos_id: id of the word after the last word.
        min_length: the fewest words to write (eos not counted), where `max_steps` allows them.
        unk_id: id of a word that is never written; None allows all words.

    Returns:
        ids, int32 [batch, time], with eos from the first eos on and past a sentence's limit; time is the length of the
        longest translation.
    """
    batch = tf.shape(source_lengths)[0]
    decoder = translator.decoder(translator.encode(source, source_lengths))
    start = _start(tf.stack([batch, 1]), sos_id)
    limits, forbidden = tf.broadcast_to(max_steps, [batch]), Forbidden(eos_id, min_length, unk_id)
    return _write(decoder, limits, start, forbidden, lambda logits, _: tf.argmax(logits, 1, tf.int32)[:, None])[:, 0]


def sample_search(
    translator: Translator,
    source: tf.Tensor,
    source_lengths: tf.Tensor,
    max_steps: tf.Tensor,
    sos_id: int,
    eos_id: int,
    temperature: float,
    draws: tf.Tensor,
    min_length: int = 0,
    unk_id: int | None = None,
) -> tf.Tensor:
    """Translate by sampling: draw words from softmax(logits / temperature) until one is eos.

    A random number u selects the first word whose cumulative probability exceeds u. The random numbers are arguments
    (see `uniform_draws`): equal numbers give equal words in any batch.

    Args:
        translator: a translator with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        max_steps: int32, the most words to write (eos included): a scalar, or [batch] to limit each sentence.
        sos_id: id of the word before the first word.
        eos_id: id of the word after the last word.
        temperature: divisor of the logits, more than 0; small values are close to greedy search.
        draws: float64 [batch, translations, time], uniform in [0, 1); time is at least the greatest of max_steps.
        min_length: the fewest words to write (eos not counted), where `max_steps` allows them.
        unk_id: id of a word that is never drawn; None allows all words.

    Returns:
        ids, int32 [batch, translations, time], with eos from the first eos on and past a sentence's limit.
    """
    batch, translations, _ = tf.unstack(tf.shape(draws))

    def choose(logits: tf.Tensor, written: PartialTranslations) -> tf.Tensor:
        # float64, because a float32 sum over a large vocabulary loses small probabilities.
        cumulative = tf.cumsum(tf.nn.softmax(tf.cast(logits, tf.float64) / temperature), axis=1)
        # Rounding may make the sum less than 1. Scaled by the sum, a draw never goes past the last word.
        draws = tf.gather(written.account, written.time, axis=2)
        drawn = tf.reshape(draws, [-1, 1]) * cumulative[:, -1:]
        return tf.reshape(tf.reduce_sum(tf.cast(cumulative <= drawn, tf.int32), axis=1), tf.shape(draws))

    decoder = translator.decoder(translator.encode(source, source_lengths))
    start = _start(tf.stack([batch, translations]), sos_id, draws)
    limits = tf.broadcast_to(max_steps, [batch])
    return _write(decoder, limits, start, Forbidden(eos_id, min_length, unk_id), choose)


def uniform_draws(seed: int, sentence: int, translation: int, steps: int) -> np.ndarray:
    """Return the random numbers of one translation: float64 [steps] in [0, 1).

    Each combination of seed, sentence and translation (all 0 or more) has its own stream; `steps` is the number of
    elements from its beginning.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, sentence, translation]))).random(steps)


def _start(shape: tf.Tensor, sos_id: int, draws: Any = ()) -> PartialTranslations:
    zeros = tf.zeros(shape, tf.int32)
    return PartialTranslations(zeros[:, :, None] + sos_id, tf.cast(zeros, tf.bool), tf.cast(zeros, tf.float32), draws)


def _write(
    decoder: StepDecoder, limits: tf.Tensor, start: PartialTranslations, forbidden: Forbidden, choose: Choice
) -> tf.Tensor:
    """Translate with a function that chooses the words; return ids, int32 [batch, translations, time]."""

    def advance(
        written: PartialTranslations, logits: tf.Tensor, _: tf.Tensor | None
    ) -> tuple[PartialTranslations, tf.Tensor]:
        never = forbidden.at(written.time, logits)
        chosen = choose(logits if never is None else logits + never, written)
        words = tf.where(written.finished, forbidden.eos_id, chosen)
        itself = tf.reshape(tf.range(tf.size(words)), tf.shape(words))
        return written._replace(
            ids=tf.concat([written.ids, words[:, :, None]], 2), finished=tf.equal(words, forbidden.eos_id)
        ), itself

    return write_words(decoder, limits, start, advance, tf.shape(start.scores)[1], forbidden.eos_id)[0]
