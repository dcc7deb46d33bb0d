"""Multi-head attention (Vaswani et al. 2017, section 3.2), of a sentence to itself or of one to another.

    head_h = softmax(Q_h K_h^T / sqrt(width of a head) + mask) V_h,   result = [head_1; ...; head_H] W_o

Keys and values are made once, and are what a decoder keeps of words before. Vectors are [time, batch, width], those of
heads [batch, heads, time, width / heads].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from nmt.model.parts.dense import Dense
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.initializers import Draw


class Keys(NamedTuple):
    """What attention reads: keys and values, [batch, heads, time, width of a head] each."""

    keys: tf.Tensor
    values: tf.Tensor


class Attention:
    """The variables of one attention below the current variable scope.

    Args:
        width: of the layers.
        heads: they share it.
        dropout: of the weights.
    """

    def __init__(self, width: int, heads: int, dropout: Dropout) -> None:
        self._width, self._heads, self._dropout = width, heads, dropout
        # Each as if it were one of the kernels that are side by side, whose start is Glorot's over the root of 2.
        start = Draw("uniform", math.sqrt(6 / (4 * width)))
        self._query = Dense("query", width, width, start)
        self._keys = Dense("key_value", width, 2 * width, start)
        self._output = Dense("output", width, width)

    def keys(self, x: tf.Tensor) -> Keys:
        """Of vectors [time, batch, width]."""
        return Keys(*self._split(self._keys(x), 2))

    def step_keys(self, x: tf.Tensor) -> Keys:
        """Of vectors [batch, width], for one time."""
        found = tf.reshape(self._keys(x), [-1, 2, self._heads, 1, self._width // self._heads])
        return Keys(*tf.unstack(found, axis=1))

    def __call__(self, x: tf.Tensor, read: Keys, mask: tf.Tensor) -> tf.Tensor:
        """The result [time, batch, width].

        Args:
            x: [time, batch, width], what asks.
            read: of the same sentences.
            mask: added to the scores [batch, heads, time, time of what is read], or to be broadcast to that.
        """
        (queries,) = self._split(self._query(x), 1)
        weights = self._dropout(self._weights(queries, read.keys, mask))
        found = tf.transpose(tf.matmul(weights, read.values), [2, 0, 1, 3])
        return self._output(self._joined(found, tf.shape(x)[:2]))

    def step(self, x: tf.Tensor, read: Keys, mask: tf.Tensor | None) -> tf.Tensor:
        """The result [rows, width] for one word each, [rows, width], of keys of as many rows; without dropout."""
        queries = tf.reshape(self._query(x), [-1, self._heads, 1, self._width // self._heads])
        found = tf.matmul(self._weights(queries, read.keys, mask), read.values)
        return self._output(tf.reshape(found, [-1, self._width]))

    def step_of_sentences(self, x: tf.Tensor, read: Keys, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The same of keys of sentences, each of which has as many rows one after the other.

        Returns:
            the result [rows, width], and the weights [rows, time], the mean of the heads.
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
        """[time, batch, parts * width] -> of each part, [batch, heads, time, width of a head]."""
        sizes = [parts, self._heads, self._width // self._heads]
        split = tf.reshape(x, tf.concat([tf.shape(x)[:2], sizes], 0))
        return tf.unstack(tf.transpose(split, [2, 1, 3, 0, 4]), num=parts)

    def _joined(self, x: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        joined = tf.reshape(x, tf.concat([shape, [self._width]], 0))
        joined.set_shape([None, None, self._width])
        return joined
