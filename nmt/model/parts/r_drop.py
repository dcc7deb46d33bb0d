"""R-Drop (Wu et al. 2021): output layer and loss of two passes that differ in their dropout masks.

For the two predictions p and q of a target word, with logits l and m, the loss is

    ((-log p[label]) + (-log q[label])) / 2  +  alpha / 4 (KL(p || q) + KL(q || p))

This is the paper's loss (equations 2 to 4) divided by two. With alpha 0 it is the mean loss of one pass, and the
learning rate need not change. In the divergences the normalisers of log p and log q cancel. With d = l - m:

    KL(p || q) + KL(q || p) = sum (p - q) d
    d / d l = p (d - sum p d) + p - q,   d / d m = q (sum q d - d) + q - p

Only the labels need a logarithm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from nmt.model.parts.softmax_cross_entropy import Losses, cut, minus_targets, predicted


def r_drop_loss_sum(
    rows: tuple[tf.Tensor, tf.Tensor], kernel: tf.Tensor, labels: tf.Tensor, alpha: float, smoothing: float = 0.0
) -> Losses:
    """Return the loss above in nats, summed over the positions.

    Args:
        rows: the output layer's inputs in the two passes, [positions, units] each; 0 positions are allowed.
        kernel: kernel of the output layer, [units, vocabulary].
        labels: int32 [positions].
        alpha: weight of the divergences.
        smoothing: label smoothing in both passes, as for `cross_entropy_sum`.

    Returns:
        scalars of the rows' dtype; `words` is the mean of the two passes.
    """

    @tf.custom_gradient
    def loss(
        first: tf.Tensor, second: tf.Tensor, kernel: tf.Tensor
    ) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
        trained: list[tf.Tensor] = []
        words, kernel_gradients = [], []
        row_gradients: tuple[list[tf.Tensor], list[tf.Tensor]] = [], []
        mean = tf.reduce_mean(kernel, 1) if smoothing else None
        for part in cut(tf.shape(labels)[0]):
            with tf.control_dependencies(trained[-1:]):  # one slice after the other, as in `cross_entropy_sum`
                some = first[part], second[part]
            passes = [predicted(one, kernel, labels[part], smoothing, mean) for one in some]
            (p, q), apart = (one.p for one in passes), passes[0].logits - passes[1].logits
            trained += [one.trained / 2 for one in passes] + [alpha / 4 * tf.reduce_sum((p - q) * apart)]
            words += [one.words / 2 for one in passes]
            for one, other, away, gradients in zip(passes, (q, p), (apart, -apart), row_gradients, strict=True):
                pulled = one.p * (away - tf.reduce_sum(one.p * away, 1, keepdims=True)) + one.p - other
                gradient = minus_targets(one.p / 2 + alpha / 4 * pulled, one.places, smoothing, 0.5)
                gradients.append(tf.matmul(gradient, kernel, transpose_b=True))
                kernel_gradients.append(tf.matmul(one.rows, gradient, transpose_a=True))

        def backward(upstream: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
            of_rows = [upstream * tf.concat(gradients, 0) for gradients in row_gradients]
            return [*of_rows, upstream * functools.reduce(tf.add, kernel_gradients)]

        return [tf.add_n(trained), tf.add_n(words)], backward

    trained, words = loss(*rows, kernel)
    return Losses(trained, tf.stop_gradient(words))
