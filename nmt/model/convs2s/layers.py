"""Layers of a convolutional model (Gehring et al. 2017): gated convolutions and the decoder's attention.

    gated linear unit   v = A * sigmoid(B), where [A; B] is a convolution   (Dauphin et al. 2016; here section 3.2)
    attention           d = (h W_d + b_d + g) / sqrt(2),  a = softmax(d z),  c = sqrt(m) sum a (z + e) / sqrt(2)   (3.3)

z are the encoder's outputs for m source words with the embeddings e, and g is the target word's embedding. Sums of two
terms are divided by sqrt(2), so that they keep their variance (3.4).
"""

from __future__ import annotations

import math

import tensorflow as tf

from nmt.model.parts.dense import NormalizedDense

ROOT_HALF = math.sqrt(0.5)


class GatedConvolution:
    """A convolution over words with a gated linear unit. Creates `<name>/...`.

    Args:
        name: name of the layer in the current variable scope.
        units: width of the inputs and outputs.
        width: width of the convolution in words.
        keep: probability that dropout keeps an element of the inputs.
    """

    def __init__(self, name: str, units: int, width: int, keep: float) -> None:
        # A gate leaves a quarter of the variance (section 3.5).
        self._dense = NormalizedDense(name, width * units, 2 * units, math.sqrt(4 * keep / (width * units)))
        self._units, self._width = units, width

    def __call__(self, x: tf.Tensor, before: int) -> tf.Tensor:
        """[time, batch, units] -> [time, batch, units]. A word's window has `before` words before it, zero-padded."""
        time = tf.shape(x)[0]
        padded = tf.pad(x, [[before, self._width - 1 - before], [0, 0], [0, 0]])
        windows = tf.concat([padded[place : place + time] for place in range(self._width)], 2)
        windows.set_shape([None, None, self._width * self._units])
        return self._gated(windows)

    def step(self, x: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one step for words [rows, units] after the words before them, [rows, width - 1, units].

        Returns:
            the outputs [rows, units], and the words before the next step, [rows, width - 1, units].
        """
        window = tf.concat([before, x[:, None]], 1)
        return self._gated(tf.reshape(window, [-1, self._width * self._units])), window[:, 1:]

    def _gated(self, windows: tf.Tensor) -> tf.Tensor:
        value, gate = tf.split(self._dense(windows), 2, -1)
        return value * tf.sigmoid(gate)


class Attention:
    """Attention of a decoder layer. Creates `query/...` and `context/...`.

    Args:
        units: width of the layers.
        size: width of the embeddings.
    """

    def __init__(self, units: int, size: int) -> None:
        self._query = NormalizedDense("query", units, size, math.sqrt(1 / units))
        self._context = NormalizedDense("context", size, units, math.sqrt(1 / size))

    def __call__(
        self, h: tf.Tensor, embedded: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor, root: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the layer's outputs plus the attention's results, and the attention weights.

        Args:
            h: outputs of the layer's convolution, [batch, time, units].
            embedded: embedded target words, [batch, time, size].
            keys: encoder outputs, [batch, source time, size].
            values: encoder outputs plus embedded source words, [batch, source time, size].
            mask: mask added to the scores, [batch, source time].
            root: square root of the source's length, [batch].

        Returns:
            the sums [batch, time, units], and the weights [batch, time, source time].
        """
        queries = (self._query(h) + embedded) * ROOT_HALF
        weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) + mask[:, None])
        found = tf.matmul(weights, values) * root[:, None, None]
        return (self._context(found) + h) * ROOT_HALF, weights
