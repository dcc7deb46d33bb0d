"""Forced decoding: the decoder writes given words, which tells how probable they are and what it attends to."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.interface import Translator
from nmt.search.search_loop import any_batch


class Forced(NamedTuple):
    """Result of forced decoding.

    Attributes:
        log_probabilities: logarithms of the words' probabilities, [batch, target time].
        weights: attention weights, [batch, target time, source time]: row t has the weights for word t. Their sum is 1;
            they are 0 past the end of the source. None for a model without attention.
    """

    log_probabilities: tf.Tensor
    weights: tf.Tensor | None


def forced_decoding(
    translator: Translator, source: tf.Tensor, source_lengths: tf.Tensor, sos_id: int, target: tf.Tensor
) -> Forced:
    """Return the probabilities of given words and the attention weights while the decoder writes them.

    Args:
        translator: a translator, or an ensemble, with dropout 0.
        source: int32 [source time, batch].
        source_lengths: int32 [batch], each at least 1.
        sos_id: id of the word before the first word.
        target: int32 [batch, target time], the words to write.
    """
    decoder = translator.decoder(translator.encode(source, source_lengths))
    batch, steps = tf.unstack(tf.shape(target))
    read = tf.concat([tf.fill(tf.stack([batch, 1]), sos_id), target], 1)
    start = tf.nest.flatten(decoder.initial_state)
    attends = translator.architecture.has_attention
    arrays = [tf.TensorArray(start[0].dtype, steps) for _ in range(1 + attends)]

    def body(time: tf.Tensor, rows: list[tf.TensorArray], state: list[tf.Tensor]) -> tuple[Any, ...]:
        now = tf.nest.pack_sequence_as(decoder.initial_state, state)
        logits, after, weights = decoder.step(now, read[:, time])
        logarithms = -tf.nn.sparse_softmax_cross_entropy_with_logits(target[:, time], logits)
        found = [tf.cast(logarithms, start[0].dtype), *([weights] if attends else [])]
        written = [array.write(time, one) for array, one in zip(rows, found, strict=True)]
        return time + 1, written, tf.nest.flatten(after)

    _, rows, _ = tf.while_loop(
        lambda time, *_: time < steps,
        body,
        [tf.constant(0), arrays, start],
        shape_invariants=[tf.TensorShape([]), [tf.TensorShape([])] * len(arrays), any_batch(start)],
    )
    logarithms = tf.transpose(rows[0].stack(), [1, 0])
    return Forced(logarithms, tf.transpose(rows[1].stack(), [1, 0, 2]) if attends else None)
