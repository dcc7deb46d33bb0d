"""Output layer, softmax and cross-entropy as one operation with its own gradient.

    logits = rows W,   p = softmax(logits),   loss = -sum log p[label]
    d loss / d logits = p - onehot(label)

Label smoothing s (Szegedy et al. 2016, section 7) gives each of V words the target probability s / V. The label has
1 - s in addition:

    loss = -(1 - s) log p[label] - s / V sum(log p),   d loss / d logits = p - (1 - s) onehot(label) - s / V

TensorFlow's own cross-entropy reads the [positions, vocabulary] matrix several times and took 27 % of a training step
on a CPU. Here the softmax is written once, changed in place at the labels, and used as the gradient. That made the
whole step a quarter shorter. `InplaceSub` changes the matrix without a copy. TensorFlow's scatter operations copy it
first: core/kernels/scatter_nd_op.cc asks for the memory of a host's operation, which a softmax's is not. The rows are
processed in slices, so that the matrices stay smaller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

_SLICES = 4
TOO_MANY = (
    f"a {_SLICES}th of the target positions of a step times the vocabulary must be less than 2**31: take smaller "
    "batches (--batch_size, --batch_tokens) or more ranks. The product is"
)


class Losses(NamedTuple):
    """Losses in nats, summed over target words.

    Attributes:
        trained: the loss that training minimizes.
        words: the cross-entropy of the labels, for reports; without a gradient if it differs from `trained`.
    """

    trained: tf.Tensor
    words: tf.Tensor


def cross_entropy_sum(rows: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0) -> Losses:
    """Return the cross-entropy in nats of softmax(rows kernel) against the labels, summed.

    Args:
        rows: the output layer's inputs, [positions, units]; 0 positions are allowed.
        kernel: kernel of the output layer, [units, vocabulary].
        labels: int32 [positions].
        smoothing: label smoothing, the probability spread evenly over all words: at least 0 and less than 1.

    Returns:
        scalars of the rows' dtype. If a label's probability underflows, the loss uses the smallest normal number
        instead (87 nats in float32); the gradient stays exact.
    """

    @tf.custom_gradient
    def loss(rows: tf.Tensor, kernel: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
        trained: list[tf.Tensor] = []
        words, row_gradients, kernel_gradients = [], [], []
        mean = tf.reduce_mean(kernel, 1) if smoothing else None
        for part in cut(tf.shape(rows)[0]):
            with tf.control_dependencies(trained[-1:]):  # one slice after the other, or the logits of all need memory
                some = rows[part]
            one = predicted(some, kernel, labels[part], smoothing, mean)
            trained.append(one.trained)
            words.append(one.words)
            with tf.control_dependencies([one.trained]):  # its computation is the last that reads p
                gradient = minus_targets(tf.identity(one.p), one.places, smoothing)
            row_gradients.append(tf.matmul(gradient, kernel, transpose_b=True))
            kernel_gradients.append(tf.matmul(one.rows, gradient, transpose_a=True))

        def backward(upstream: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
            return [upstream * tf.concat(row_gradients, 0), upstream * functools.reduce(tf.add, kernel_gradients)]

        return [tf.add_n(trained), *([tf.add_n(words)] if smoothing else [])], backward

    found = loss(rows, kernel)
    return Losses(found[0], tf.stop_gradient(found[-1]) if smoothing else found[0])


class Prediction(NamedTuple):
    """Predictions and losses of a slice of positions.

    Attributes:
        rows: the output layer's inputs, [positions, units].
        logits: [positions, vocabulary].
        p: softmax of the logits, [positions, vocabulary].
        places: indices of the labels in `p`, int32 [positions, 2].
        trained: scalar, as in `Losses`.
        words: scalar, as in `Losses`.
    """

    rows: tf.Tensor
    logits: tf.Tensor
    p: tf.Tensor
    places: tf.Tensor
    trained: tf.Tensor
    words: tf.Tensor


def cut(positions: tf.Tensor) -> Iterator[slice]:
    """Yield the slices that this number of positions is processed in."""
    for index in range(_SLICES):
        yield slice(positions * index // _SLICES, positions * (index + 1) // _SLICES)


def predicted(
    rows: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, smoothing: float, mean: tf.Tensor | None
) -> Prediction:
    """Return the predictions and the cross-entropy of a slice.

    Args:
        rows: [positions, units].
        kernel: [units, vocabulary].
        labels: int32 [positions].
        smoothing: label smoothing, as for `cross_entropy_sum`.
        mean: mean of the kernel over the vocabulary, [units]; None without smoothing.
    """
    # TensorFlow's mixed precision computes a softmax directly after a product in bfloat16, with p and p - 1 rounded to
    # two digits. After `ensure_shape` the softmax stays in float32.
    logits = tf.ensure_shape(tf.matmul(rows, kernel), [None, None])
    p = tf.nn.softmax(logits)
    places = tf.stack([tf.range(tf.shape(rows)[0]), labels], 1)
    hit = tf.gather_nd(p, places)
    lost = -tf.math.log(tf.maximum(hit, _smallest(hit.dtype)))
    trained = words = tf.reduce_sum(lost)
    if mean is not None:  # the mean of -log p is the label's -log p, plus its logit, minus the mean logit
        evenly = tf.reduce_sum(lost + tf.gather_nd(logits, places) - tf.linalg.matvec(rows, mean))
        trained = (1 - smoothing) * words + smoothing * evenly
    return Prediction(rows, logits, p, places, trained, words)


def minus_targets(p: tf.Tensor, places: tf.Tensor, smoothing: float, weight: float = 1.0) -> tf.Tensor:
    """Return p minus the target probabilities: the gradient of `trained` by the logits if p is the softmax.

    Args:
        p: [positions, vocabulary]. The result reuses its memory: no other operation may read p afterwards.
        places: indices of the labels, as in `Prediction`.
        smoothing: label smoothing, as for `cross_entropy_sum`.
        weight: factor of the target probabilities.
    """
    if smoothing:
        p -= tf.constant(weight * smoothing, p.dtype) / tf.cast(tf.shape(p)[1], p.dtype)
    asked = tf.fill(tf.shape(places)[:1], tf.constant(weight * (1 - smoothing), p.dtype))
    flat = flat_places(places, tf.shape(p))
    return tf.reshape(tf.raw_ops.InplaceSub(x=tf.reshape(p, [-1]), i=flat, v=asked), tf.shape(p))


def flat_places(places: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Return the flat (row-major) indices, int32 [n], of places [n, 2] in a matrix of this shape [2]."""
    elements = tf.reduce_prod(tf.cast(shape, tf.int64))
    few = tf.raw_ops.Assert(condition=elements <= tf.int32.max, data=[TOO_MANY, elements])
    row, column = tf.unstack(places, axis=1)
    with tf.control_dependencies([few]):
        return row * shape[1] + column


def _smallest(dtype: tf.DType) -> tf.Tensor:
    return tf.constant(2.3e-308 if dtype == tf.float64 else 1.2e-38, dtype)
