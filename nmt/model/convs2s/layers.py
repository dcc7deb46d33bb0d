"""The layers of a convolutional model (Gehring et al. 2017): gated convolutions, and the decoder's attention.

    gated linear unit   v = A * sigmoid(B), where [A; B] is a convolution   (Dauphin et al. 2016; here section 3.2)
    attention           d = (h W_d + b_d + g) / sqrt(2),  a = softmax(d z),  c = sqrt(m) sum a (z + e) / sqrt(2)   (3.3)

z are the encoder's outputs for m words whose vectors are e, g is the target word's vector. Sums are divided by the root
of their two parts, so that they keep their variance (3.4).
"""

from __future__ import annotations

import math

import tensorflow as tf

from nmt.model.parts.dense import NormalizedDense

ROOT_HALF = math.sqrt(0.5)


class GatedConvolution:
    """A convolution over words, and its gate. Creates `<name>/...`.

    Args:
        name: of the layer, below the current variable scope.
        units: width of what it reads and gives.
        width: words that it reads at once.
        keep: probability that a number of what it reads is kept.
    """

    def __init__(self, name: str, units: int, width: int, keep: float) -> None:
        # Of what a gate lets through, a quarter of the variance is left (section 3.5).
        self._dense = NormalizedDense(name, width * units, 2 * units, math.sqrt(4 * keep / (width * units)))
        self._units, self._width = units, width

    def __call__(self, x: tf.Tensor, before: int) -> tf.Tensor:
        """[time, batch, units], and the same; each word reads so many before itself, zeros ahead of the first."""
        time = tf.shape(x)[0]
        padded = tf.pad(x, [[before, self._width - 1 - before], [0, 0], [0, 0]])
        windows = tf.concat([padded[place : place + time] for place in range(self._width)], 2)
        windows.set_shape([None, None, self._width * self._units])
        return self._gated(windows)

    def step(self, x: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One word each, [rows, units], behind those before it, [rows, width - 1, units].

        Returns:
            the same of it, and what is before the next one.
        """
        window = tf.concat([before, x[:, None]], 1)
        return self._gated(tf.reshape(window, [-1, self._width * self._units])), window[:, 1:]

    def _gated(self, windows: tf.Tensor) -> tf.Tensor:
        value, gate = tf.split(self._dense(windows), 2, -1)
        return value * tf.sigmoid(gate)


class Attention:
    """A decoder layer's attention. Creates `query/...` and `context/...`.

    Args:
        units: width of the layers.
        size: of words' vectors.
    """

    def __init__(self, units: int, size: int) -> None:
        self._query = NormalizedDense("query", units, size, math.sqrt(1 / units))
        self._context = NormalizedDense("context", size, units, math.sqrt(1 / size))

    def __call__(
        self, h: tf.Tensor, embedded: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor, root: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What the layer has given, and where it looks.

        Args:
            h: [batch, time, units].
            embedded: the target words, [batch, time, size].
            keys: [batch, source time, size].
            values: likewise.
            mask: added to scores, [batch, source time].
            root: of the source's length, [batch].

        Returns:
            the sum with what it has found, [batch, time, units], and the weights [batch, time, source time].
        """
        queries = (self._query(h) + embedded) * ROOT_HALF
        weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) + mask[:, None])
        found = tf.matmul(weights, values) * root[:, None, None]
        return (self._context(found) + h) * ROOT_HALF, weights
