"""Masks of positions: 0 or 1 for padding, and large negative numbers added to attention scores."""

from __future__ import annotations

import tensorflow as tf

# With this score an attention weight is exactly 0. The number is finite in float16, too.
_NEVER = -3e4


def outside(lengths: tf.Tensor, time: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the score mask [batch, time] of padding: `_NEVER` past the ends of sentences of these lengths [batch]."""
    return tf.cast(~tf.sequence_mask(lengths, time), dtype) * _NEVER


def inside(lengths: tf.Tensor, time: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return factors [time, batch, 1]: 1 in sentences of these lengths, int32 [batch], and 0 past their ends."""
    return tf.transpose(tf.sequence_mask(lengths, time, dtype))[:, :, None]


def later(time: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the causal score mask [time, time]: `_NEVER` for each word's later words."""
    places = tf.range(time)
    return tf.cast(places[None, :] > places[:, None], dtype) * _NEVER
