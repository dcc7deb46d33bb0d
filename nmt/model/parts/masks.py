"""Masks: which places are in a sentence; what is added to scores, so that attention does not look where it must not."""

from __future__ import annotations

import tensorflow as tf

# The weight is then exactly 0; in float16, too, this is a number.
_NEVER = -3e4


def outside(lengths: tf.Tensor, time: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """That of places behind sentences of these lengths, int32 [batch]: [batch, time]."""
    return tf.cast(~tf.sequence_mask(lengths, time), dtype) * _NEVER


def inside(lengths: tf.Tensor, time: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """1 in sentences of these lengths, int32 [batch], and 0 behind them: [time, batch, 1]."""
    return tf.transpose(tf.sequence_mask(lengths, time, dtype))[:, :, None]


def later(time: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """That of words behind each word: [time, time]."""
    places = tf.range(time)
    return tf.cast(places[None, :] > places[:, None], dtype) * _NEVER
