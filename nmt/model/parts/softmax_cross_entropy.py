"""The output layer, its softmax and its cross-entropy, in one piece.

    logits = rows W,   p = softmax(logits),   loss = -sum log p[label]
    d loss / d logits = p - onehot(label)

With label smoothing (Szegedy et al. 2016, section 7) the right word is asked for with probability 1 - s, and each of V
words with s / V more:

    loss = -(1 - s) log p[label] - s / V sum(log p),   d loss / d logits = p - (1 - s) onehot(label) - s / V

TensorFlow's own cross-entropy walks the [positions, vocabulary] matrix several times and was 27 % of a
training step on a CPU; a softmax that is written once, corrected in place at the labels and used as the
gradient made the whole step a quarter shorter. "In place" is meant: TensorFlow's scatters copy the matrix first
(core/kernels/scatter_nd_op.cc asks for the memory of a host's operation, which a softmax's is not). The rows are cut
into slices, so that the pieces stay smaller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

_SLICES = 4
TOO_MANY = (
    f"a {_SLICES}th of the target positions of a step times the vocabulary must be less than 2**31: take smaller "
    "batches (--batch_size, --batch_tokens) or more ranks; they are now"
)


class Losses(NamedTuple):
    """Nats, summed over target words.

    Attributes:
        trained: what training is to lower.
        words: the cross-entropy of the right words; without a gradient where it is another.
    """

    trained: tf.Tensor
    words: tf.Tensor


def cross_entropy_sum(rows: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0) -> Losses:
    """Cross-entropy in nats of softmax(rows kernel) against the labels, summed.

    Args:
        rows: [positions, units]; there may be no positions.
        kernel: [units, vocabulary].
        labels: int32 [positions].
        smoothing: probability that is asked for of all words alike, at least 0 and less than 1.

    Returns:
        scalars of the rows' type. A label whose probability underflows counts as if its probability were the
        smallest normal number (87 nats in float32); the gradient stays exact.
    """

    @tf.custom_gradient
    def loss(rows: tf.Tensor, kernel: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
        trained: list[tf.Tensor] = []
        words, row_gradients, kernel_gradients = [], [], []
        mean = tf.reduce_mean(kernel, 1) if smoothing else None
        for part in cut(tf.shape(rows)[0]):
            with tf.control_dependencies(trained[-1:]):  # in turn, or the logits of all would be there at once
                some = rows[part]
            one = predicted(some, kernel, labels[part], smoothing, mean)
            trained.append(one.trained)
            words.append(one.words)
            with tf.control_dependencies([one.trained]):  # which is the last that reads p
                gradient = less_asked(tf.identity(one.p), one.places, smoothing)
            row_gradients.append(tf.matmul(gradient, kernel, transpose_b=True))
            kernel_gradients.append(tf.matmul(one.rows, gradient, transpose_a=True))

        def backward(upstream: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
            return [upstream * tf.concat(row_gradients, 0), upstream * functools.reduce(tf.add, kernel_gradients)]

        return [tf.add_n(trained), *([tf.add_n(words)] if smoothing else [])], backward

    found = loss(rows, kernel)
    return Losses(found[0], tf.stop_gradient(found[-1]) if smoothing else found[0])


class Prediction(NamedTuple):
    """What a slice of positions predicts, [positions, ...].

    Attributes:
        rows: what it is predicted from.
        logits: [positions, vocabulary].
        p: their softmax.
        places: of the labels in it, int32 [positions, 2].
        trained: a scalar, as in `Losses`.
        words: likewise.
    """

    rows: tf.Tensor
    logits: tf.Tensor
    p: tf.Tensor
    places: tf.Tensor
    trained: tf.Tensor
    words: tf.Tensor


def cut(positions: tf.Tensor) -> Iterator[slice]:
    """The slices of so many positions."""
    for index in range(_SLICES):
        yield slice(positions * index // _SLICES, positions * (index + 1) // _SLICES)


def predicted(
    rows: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, smoothing: float, mean: tf.Tensor | None
) -> Prediction:
    """The cross-entropy of a slice.

    Args:
        rows: [positions, units].
        kernel: [units, vocabulary].
        labels: int32 [positions].
        smoothing: as for `cross_entropy_sum`.
        mean: of the kernel over the vocabulary, [units], with smoothing.
    """
    # TensorFlow's mixed precision lets a softmax that directly follows a product run in bfloat16,
    # which rounds p, and with it p - 1, to two digits; behind this operation it stays in float32.
    logits = tf.ensure_shape(tf.matmul(rows, kernel), [None, None])
    p = tf.nn.softmax(logits)
    places = tf.stack([tf.range(tf.shape(rows)[0]), labels], 1)
    hit = tf.gather_nd(p, places)
    lost = -tf.math.log(tf.maximum(hit, _smallest(hit.dtype)))
    trained = words = tf.reduce_sum(lost)
    if mean is not None:  # the mean of -log p: what the right word has lost, and its logit above the mean one
        evenly = tf.reduce_sum(lost + tf.gather_nd(logits, places) - tf.linalg.matvec(rows, mean))
        trained = (1 - smoothing) * words + smoothing * evenly
    return Prediction(rows, logits, p, places, trained, words)


def less_asked(p: tf.Tensor, places: tf.Tensor, smoothing: float, weight: float = 1.0) -> tf.Tensor:
    """p less what is asked for, the gradient of `trained` by the logits if p is the softmax.

    Args:
        p: [positions, vocabulary], whose memory the result takes: nothing else may read it afterwards.
        places: as in `Prediction`.
        smoothing: as for `cross_entropy_sum`.
        weight: of what is asked for.
    """
    if smoothing:
        p -= tf.constant(weight * smoothing, p.dtype) / tf.cast(tf.shape(p)[1], p.dtype)
    asked = tf.fill(tf.shape(places)[:1], tf.constant(weight * (1 - smoothing), p.dtype))
    flat = flat_places(places, tf.shape(p))
    return tf.reshape(tf.raw_ops.InplaceSub(x=tf.reshape(p, [-1]), i=flat, v=asked), tf.shape(p))


def flat_places(places: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Places [n, 2] in a matrix of a shape [2] -> int32 [n] in its elements one after the other."""
    elements = tf.reduce_prod(tf.cast(shape, tf.int64))
    few = tf.raw_ops.Assert(condition=elements <= tf.int32.max, data=[TOO_MANY, elements])
    row, column = tf.unstack(places, axis=1)
    with tf.control_dependencies([few]):
        return row * shape[1] + column


def _smallest(dtype: tf.DType) -> tf.Tensor:
    return tf.constant(2.3e-308 if dtype == tf.float64 else 1.2e-38, dtype)
