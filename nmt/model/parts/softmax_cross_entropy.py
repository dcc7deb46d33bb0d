"""The output layer, its softmax and its cross-entropy, in one piece.

    logits = rows W,   p = softmax(logits),   loss = -sum log p[label]
    d loss / d logits = p - onehot(label)

TensorFlow's own cross-entropy walks the [positions, vocabulary] matrix several times and was 27 % of a
training step on a CPU; a softmax that is written once, corrected in place at the labels and used as the
gradient made the whole step a quarter shorter. The rows are cut into slices, so that the pieces stay smaller.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

_SLICES = 4


def cross_entropy_sum(rows: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Cross-entropy in nats of softmax(rows kernel) against the labels, summed.

    Args:
        rows: [positions, units]; there may be no positions.
        kernel: [units, vocabulary].
        labels: int32 [positions].

    Returns:
        a scalar of the rows' type. A label whose probability underflows counts as if its probability were the
        smallest normal number (87 nats in float32); the gradient stays exact.
    """

    @tf.custom_gradient
    def loss(rows: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        positions = tf.shape(rows)[0]
        losses, row_gradients, kernel_gradients = [], [], []
        for index in range(_SLICES):
            part = slice(positions * index // _SLICES, positions * (index + 1) // _SLICES)
            some = rows[part]
            # TensorFlow's mixed precision lets a softmax that directly follows a product run in bfloat16,
            # which rounds p, and with it p - 1, to two digits; behind this operation it stays in float32.
            logits = tf.ensure_shape(tf.matmul(some, kernel), [None, None])
            p = tf.nn.softmax(logits)
            places = tf.stack([tf.range(tf.shape(some)[0]), labels[part]], 1)
            hit = tf.gather_nd(p, places)
            losses.append(-tf.reduce_sum(tf.math.log(tf.maximum(hit, _smallest(hit.dtype)))))
            # Once `hit` is read nothing else needs p, and the subtraction can happen in its memory.
            with tf.control_dependencies([hit]):
                gradient = tf.tensor_scatter_nd_sub(p, places, tf.ones_like(hit))
            row_gradients.append(tf.matmul(gradient, kernel, transpose_b=True))
            kernel_gradients.append(tf.matmul(some, gradient, transpose_a=True))

        def backward(upstream: tf.Tensor) -> list[tf.Tensor]:
            return [upstream * tf.concat(row_gradients, 0), upstream * tf.add_n(kernel_gradients)]

        return tf.add_n(losses), backward

    return loss(rows, kernel)


def _smallest(dtype: tf.DType) -> tf.Tensor:
    return tf.constant(2.3e-308 if dtype == tf.float64 else 1.2e-38, dtype)
