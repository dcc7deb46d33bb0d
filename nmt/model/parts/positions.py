"""Position embeddings: a vector for each position in a sentence, which is added to the word's vector."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from nmt.model.parts.initializers import InitialDistribution

TOO_LONG = (
    "the model has fewer positions (--max_positions) than the longest sentence has words, with its end mark. "
    "Cut sentences (in training --src_max_len, --tgt_max_len; else --src_max_len_infer, --tgt_max_len_infer), or train "
    "with more positions. Model and sentence have"
)


class Positions(Protocol):
    """Position embeddings."""

    def first(self, count: tf.Tensor) -> tf.Tensor:
        """Return the vectors of the first `count` positions, [count, width]."""

    def at(self, place: tf.Tensor) -> tf.Tensor:
        """Return the vector of one position, counted from 0, [width]."""


class Sinusoidal:
    """Sines and cosines (Vaswani et al. 2017, section 3.5), for any number of positions:

        p[t, 2i] = sin(t / 10000 ** (2i / width)),   p[t, 2i + 1] = cos(t / 10000 ** (2i / width))

    Args:
        width: width of a vector, an even number.
        dtype: dtype of the vectors.
    """

    def __init__(self, width: int, dtype: tf.DType) -> None:
        self._width, self._dtype = width, dtype

    def first(self, count: tf.Tensor) -> tf.Tensor:
        """[count, width]."""
        return self._of(tf.range(count))

    def at(self, place: tf.Tensor) -> tf.Tensor:
        """[width]."""
        return self._of(place[None])[0]

    def _of(self, places: tf.Tensor) -> tf.Tensor:
        # In float64: the error of float32 is about 0.001 at an angle of some ten thousand.
        pace = 10000.0 ** -(tf.range(0, self._width, 2, tf.float64) / self._width)
        angles = tf.cast(places, tf.float64)[:, None] * pace
        found = tf.reshape(tf.stack([tf.sin(angles), tf.cos(angles)], 2), [-1, self._width])
        return tf.cast(found, self._dtype)


class Learned:
    """Trained position embeddings for a limited number of positions. Creates `<name>` [rows, width].

    Args:
        name: name of the variable.
        rows: number of positions.
        width: width of a vector.
        start: initial distribution of the vectors.
    """

    def __init__(self, name: str, rows: int, width: int, start: InitialDistribution) -> None:
        self._rows = rows
        self._table = tf.identity(tf.compat.v1.get_variable(name, [rows, width], initializer=start))

    def first(self, count: tf.Tensor) -> tf.Tensor:
        """[count, width]."""
        with tf.control_dependencies([self._known(count)]):
            return self._table[:count]

    def at(self, place: tf.Tensor) -> tf.Tensor:
        """[width]."""
        with tf.control_dependencies([self._known(place + 1)]):
            return tf.gather(self._table, place)

    def _known(self, count: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.Assert(condition=count <= self._rows, data=[TOO_LONG, self._rows, count])
