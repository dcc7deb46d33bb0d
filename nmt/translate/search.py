"""Greedy search and sampling: a translation word by word, the best one each time or one drawn at random.

Each is a single loop inside the graph. A sentence stops by itself, so that what it gets does not depend on the
sentences it shares a batch with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.model.interface import Translator
from nmt.model.lstm.encoder import Memory

# (logits [batch, vocabulary], time, an int32 scalar from 0) -> the next words, int32 [batch]
Choice = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def greedy_search(
    translator: Translator,
    source: tf.Tensor,
    source_lengths: tf.Tensor,
    max_steps: tf.Tensor,
    sos_id: int,
    eos_id: int,
) -> tf.Tensor:
    """Write the most probable next word until it is eos.

    Args:
        translator: made with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        max_steps: int32, the most words to write (eos included): a scalar, or [batch] to limit each sentence.
        sos_id: the word before the first.
        eos_id: the word after the last.

    Returns:
        ids, int32 [batch, time], eos from the first eos on, and past a sentence's limit; time is as long as
        the longest translation needs.
    """
    memory = translator.encode(source, source_lengths)
    return _write(translator, memory, max_steps, sos_id, eos_id, lambda logits, _: tf.argmax(logits, 1, tf.int32))


def sample_search(
    translator: Translator,
    source: tf.Tensor,
    source_lengths: tf.Tensor,
    max_steps: tf.Tensor,
    sos_id: int,
    eos_id: int,
    temperature: float,
    draws: tf.Tensor,
) -> tf.Tensor:
    """Write words drawn from softmax(logits / temperature) until one is eos.

    The word drawn by a number u is the first whose cumulative probability exceeds u. All chance is in these numbers,
    which come from outside (see `uniform_draws`): the same ones give the same words in any batch.

    Args:
        translator: made with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        max_steps: int32, the most words to write (eos included): a scalar, or [batch] to limit each sentence.
        sos_id: the word before the first.
        eos_id: the word after the last.
        temperature: more than 0; the smaller, the nearer to greedy search.
        draws: float64 [batch, translations, time] in [0, 1), uniform; time is at least the greatest of max_steps.

    Returns:
        ids, int32 [batch, translations, time], eos from the first eos on, and past a sentence's limit.

    Raises:
        ValueError: temperature not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"sampling_temperature is {temperature}; it must be more than 0")
    batch, translations, time = tf.unstack(tf.shape(draws))
    rows = tf.reshape(draws, tf.stack([batch * translations, time]))

    def choose(logits: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
        # In float64: the sum of a large vocabulary's probabilities would lose the small ones.
        cumulative = tf.cumsum(tf.nn.softmax(tf.cast(logits, tf.float64) / temperature), axis=1)
        # Times the sum, which rounding keeps from being 1: the last word is not passed by.
        drawn = tf.gather(rows, now, axis=1)[:, None] * cumulative[:, -1:]
        return tf.reduce_sum(tf.cast(cumulative <= drawn, tf.int32), axis=1)

    memory = repeated(translator.encode(source, source_lengths), translations)
    limits = tf.repeat(tf.broadcast_to(max_steps, [batch]), translations)
    ids = _write(translator, memory, limits, sos_id, eos_id, choose)
    return tf.reshape(ids, tf.stack([batch, translations, tf.shape(ids)[1]]))


def uniform_draws(seed: int, sentence: int, translation: int, steps: int) -> np.ndarray:
    """The random numbers of one translation: float64 [steps] in [0, 1).

    Each seed, sentence and translation (all 0 or more) has a stream of its own; fewer steps give its beginning.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, sentence, translation]))).random(steps)


def attention_weights(
    translator: Translator, source: tf.Tensor, source_lengths: tf.Tensor, sos_id: int, target: tf.Tensor
) -> tf.Tensor:
    """Where the decoder looks while it writes given words, however these were found.

    Args:
        translator: with attention, made with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        sos_id: the word before the first.
        target: int32 [batch, target time], the words written.

    Returns:
        [batch, target time, source time]: row t has the weights, of sum 1, with which word t was written; 0 past a
        source's end.

    Raises:
        ValueError: the model has no attention.
    """
    if not translator.architecture.has_attention:
        raise ValueError("a model without attention has no attention weights")
    memory = translator.encode(source, source_lengths)
    decoder = translator.decoder(memory)
    batch, steps = tf.unstack(tf.shape(target))
    read = tf.concat([tf.fill(tf.stack([batch, 1]), sos_id), target], 1)

    def body(time: tf.Tensor, rows: tf.TensorArray, state: list[tf.Tensor]) -> tuple[Any, ...]:
        _, new, weights = decoder.step(tf.nest.pack_sequence_as(decoder.initial_state, state), read[:, time])
        return time + 1, rows.write(time, weights), tf.nest.flatten(new)

    start = tf.nest.flatten(decoder.initial_state)
    _, rows, _ = tf.while_loop(
        lambda time, *_: time < steps,
        body,
        [tf.constant(0), tf.TensorArray(memory.outputs.dtype, steps), start],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([]), any_batch(start)],
    )
    return tf.transpose(rows.stack(), [1, 0, 2])


def repeated(memory: Memory, times: int | tf.Tensor) -> Memory:
    """Each sentence `times` times in a row."""
    return Memory(
        tf.repeat(memory.outputs, times, axis=1),
        tf.repeat(memory.lengths, times),
        tf.nest.map_structure(lambda value: tf.repeat(value, times, axis=0), memory.state),
    )


def any_batch(state: list[tf.Tensor]) -> list[tf.TensorShape]:
    """The shapes of a decoder's state in a loop, which does not know the batch's size."""
    return [tf.TensorShape([None, *value.shape[1:]]) for value in state]


def _write(
    translator: Translator, memory: Memory, max_steps: tf.Tensor, sos_id: int, eos_id: int, choose: Choice
) -> tf.Tensor:
    """One translation of each sentence of the memory, int32 [batch, time], by a choice of words."""
    decoder = translator.decoder(memory)
    batch = tf.shape(memory.lengths)[0]
    limits = tf.broadcast_to(max_steps, [batch])

    def body(time: tf.Tensor, finished: tf.Tensor, ids: tf.Tensor, state: list[tf.Tensor]) -> tuple[Any, ...]:
        logits, new, _ = decoder.step(tf.nest.pack_sequence_as(decoder.initial_state, state), ids[:, -1])
        words = tf.where(finished, eos_id, choose(logits, time))
        finished |= tf.equal(words, eos_id) | (time + 1 >= limits)
        return time + 1, finished, tf.concat([ids, words[:, None]], 1), tf.nest.flatten(new)

    start = tf.nest.flatten(decoder.initial_state)
    _, _, ids, _ = tf.while_loop(
        lambda time, finished, *_: ~tf.reduce_all(finished),
        body,
        [tf.constant(0), limits <= 0, tf.fill([batch, 1], sos_id), start],
        shape_invariants=[
            tf.TensorShape([]),
            tf.TensorShape([None]),
            tf.TensorShape([None, None]),
            any_batch(start),
        ],
    )
    return ids[:, 1:]
