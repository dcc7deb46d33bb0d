"""Deferred weight gradients: what a loop over time multiplies with gets its gradient once, after the loop.

The problem. A recurrent layer multiplies in every step with the same matrix W (here a kernel; keys and values of the
attention are alike):

    r_t = a_t + f_t W            a_t known ahead of the loop (x_t W_x + b), f_t only inside it (h_{t-1}, say)

TensorFlow differentiates the loop step by step (backpropagation through time): step t makes the small product f_t^T
dr_t and adds it to a sum as large as W. For 256 units that reads and writes a megabyte or two in each step, to add
what 64 sentences have to say. The same sum is one large product over all times, and fast:

    dW = sum_t f_t^T dr_t = [f_1; f_2; ...]^T [dr_1; dr_2; ...]

The trick. Two things are needed for that product after the loop: all f_t and all dr_t.

- The f_t are easy: the loop writes them out, as it writes its outputs.
- The dr_t exist in the backward loop only. But r_t = a_t + ..., so dr_t is also the gradient of a_t: the gradient that
  TensorFlow hands back to the [time, batch, width] tensor a from which the loop read the a_t. Whoever stands between a
  and the loop sees [dr_1; dr_2; ...] go by.

`LoopOperand.carry` stands there: an identity whose gradient passes da on and forms dW on the way. Inside the loop W
is cut off by `stop_gradient`, so that nothing is counted twice (f_t gets its gradient dr_t W^T there as ever).

    forward                                            backward

    a ----> carry ----> a_1  a_2  a_3 ...              da <---- carry <---- dr_1  dr_2  dr_3 ...
              ^          +    +    +                              |  ^
    W --------+         f_t stop(W), in the loop       dW <-------+  |
                         ^    ^    ^                   f^T dr        |
                        f_1  f_2  f_3 ... ------------ fed ----------+

Hence the order of use: `carry` before the loop, `value` inside, `fed` after it. `carry` is built before the f_t are
known; its gradient is built after, when TensorFlow differentiates, and that is when it looks at what was `fed`.

Where nothing is known ahead of the loop that could carry dr_t (the attention's context has no such term), the loop
reads and adds zeros, whose gradient is dr_t all the same: `AttentionInLoop.zeros`, `AttentionInLoop.outside`.

Who uses it: `recurrent_cell.Product.in_loop` for kernels (`matrix_gradient`); `attention.AttentionInLoop` for keys
and values, one matrix for each sentence (`batch_gradient`); `recurrence`, `decoder` and `gnmt_decoder` run
the loops, and tell after them what was fed (`close`). The step of search uses none of it. On a CPU this saves 5-7 %
of a training step; that the gradients are those of finite differences is a test.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


class LoopOperand:
    """One operand that all steps of one loop multiply with.

    Use, in this order: `carry` the term ahead of the loop; in the loop multiply with `value` and add the term
    of that time; after the loop say what was `fed`.

    Args:
        operand: the operand.
        gradient: (fed [time, ...], d result [time, ...]) -> d operand.

    Attributes:
        value: the operand without a gradient, for use inside the loop.
    """

    def __init__(self, operand: tf.Tensor, gradient: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> None:
        self.value = tf.stop_gradient(operand)
        self._operand = operand
        self._gradient = gradient
        self._fed: tf.Tensor | None = None

    def carry(self, term: tf.Tensor) -> tf.Tensor:
        """The same [time, ...] term, through which the operand receives its gradient."""

        @tf.custom_gradient
        def carried(
            term: tf.Tensor, operand: tf.Tensor
        ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
            def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                if self._fed is None:
                    raise RuntimeError("differentiated before `fed` was told what the loop multiplied")
                return upstream, self._gradient(self._fed, upstream)

            return tf.identity(term), backward

        return carried(term, self._operand)

    def fed(self, values: tf.Tensor) -> None:
        """What the loop multiplied with the operand, [time, ...]."""
        self._fed = values


def matrix_gradient(fed: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """For fed_t [batch, rows] times a matrix [rows, columns]."""
    rows, columns = fed.shape[-1], upstream.shape[-1]
    return tf.matmul(tf.reshape(fed, [-1, rows]), tf.reshape(upstream, [-1, columns]), transpose_a=True)


def batch_gradient(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """The sum over time of outer products: [time, batch, n], [time, batch, m] -> [batch, n, m]."""
    return tf.matmul(tf.transpose(left, [1, 2, 0]), tf.transpose(right, [1, 0, 2]))
