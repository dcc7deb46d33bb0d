"""Multi-head attention (Vaswani et al. 2017, section 3.2), to the same sentence or to the source.

    head_h = softmax(Q_h K_h^T / sqrt(width of a head) + mask) V_h,   result = [head_1; ...; head_H] W_o

Keys and values are computed once; a decoder keeps them for earlier words. Vectors are [time, batch, width], those of
heads [batch, heads, time, width / heads].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from nmt.model.parts.dense import Dense
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.initializers import InitialDistribution


class Keys(NamedTuple):
    """Keys and values of an attention, [batch, heads, time, width of a head] each."""

    keys: tf.Tensor
    values: tf.Tensor


class Attention:
    """The variables of one attention in the current variable scope.

    Args:
        width: width of the layers.
        heads: number of heads, which share the width.
        dropout: dropout of the attention weights.
    """

    def __init__(self, width: int, heads: int, dropout: Dropout) -> None:
        self._width, self._heads, self._dropout = width, heads, dropout
        # Glorot's bound for a kernel [width, 3 * width]: query, key and value together, sqrt(2) below that of one.
        start = InitialDistribution("uniform", math.sqrt(6 / (4 * width)))
        self._query = Dense("query", width, width, start)
        self._keys = Dense("key_value", width, 2 * width, start)
        self._output = Dense("output", width, width)

    def keys(self, x: tf.Tensor) -> Keys:
        """Return keys and values of vectors [time, batch, width]."""
        return Keys(*self._split(self._keys(x), 2))

    def step_keys(self, x: tf.Tensor) -> Keys:
        """Return keys and values of vectors [batch, width] at one time."""
        found = tf.reshape(self._keys(x), [-1, 2, self._heads, 1, self._width // self._heads])
        return Keys(*tf.unstack(found, axis=1))

    def __call__(self, x: tf.Tensor, read: Keys, mask: tf.Tensor) -> tf.Tensor:
        """Return the results [time, batch, width].

        Args:
            x: vectors that the queries are computed from, [time, batch, width].
            read: keys and values of the same sentences.
            mask: mask added to the scores, [batch, heads, time, time of the keys] or broadcastable to this shape.
        """
        (queries,) = self._split(self._query(x), 1)
        weights = self._dropout(self._weights(queries, read.keys, mask))
        found = tf.transpose(tf.matmul(weights, read.values), [2, 0, 1, 3])
        return self._output(self._joined(found, tf.shape(x)[:2]))

    def step(self, x: tf.Tensor, read: Keys, mask: tf.Tensor | None) -> tf.Tensor:
        """Return the results [rows, width] of one step for words [rows, width], with keys of each row; no dropout."""
        queries = tf.reshape(self._query(x), [-1, self._heads, 1, self._width // self._heads])
        found = tf.matmul(self._weights(queries, read.keys, mask), read.values)
        return self._output(tf.reshape(found, [-1, self._width]))

    def step_of_sentences(self, x: tf.Tensor, read: Keys, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one step with keys of each sentence; each sentence has equally many consecutive rows in `x`.

        Returns:
            the results [rows, width], and the weights [rows, time], averaged over the heads.
        """
        size, sentences, time = self._width // self._heads, tf.shape(read.keys)[0], tf.shape(read.keys)[2]
        queries = tf.reshape(self._query(x), tf.stack([sentences, -1, self._heads, size]))
        weights = self._weights(tf.transpose(queries, [0, 2, 1, 3]), read.keys, mask)
        found = tf.transpose(tf.matmul(weights, read.values), [0, 2, 1, 3])
        means = tf.reshape(tf.reduce_mean(weights, 1), tf.stack([-1, time]))
        return self._output(tf.reshape(found, [-1, self._width])), means

    def _weights(self, queries: tf.Tensor, keys: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        scaled = queries * (1 / math.sqrt(self._width // self._heads))
        scores = tf.matmul(scaled, keys, transpose_b=True)
        return tf.nn.softmax(scores if mask is None else scores + mask)

    def _split(self, x: tf.Tensor, parts: int) -> list[tf.Tensor]:
        """Split [time, batch, parts * width] into parts, [batch, heads, time, width of a head] each."""
        sizes = [parts, self._heads, self._width // self._heads]
        split = tf.reshape(x, tf.concat([tf.shape(x)[:2], sizes], 0))
        return tf.unstack(tf.transpose(split, [2, 1, 3, 0, 4]), num=parts)

    def _joined(self, x: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        joined = tf.reshape(x, tf.concat([shape, [self._width]], 0))
        joined.set_shape([None, None, self._width])
        return joined
