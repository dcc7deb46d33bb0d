"""Deferred weight gradients: the gradient of a loop's kernel is computed once, after the loop over time.

The problem. A recurrent layer multiplies in every step with the same matrix W (a kernel, or keys and values of an
attention):

    r_t = a_t + f_t W            a_t known before the loop (x_t W_x + b), f_t inside it only (for example h_{t-1})

TensorFlow differentiates the loop step by step (backpropagation through time). Step t computes the small product
f_t^T dr_t and adds it to a sum as large as W. For 256 units, each step reads and writes a megabyte or two to add the
gradients of 64 sentences. The same sum is one large, fast product over all times:

    dW = sum_t f_t^T dr_t = [f_1; f_2; ...]^T [dr_1; dr_2; ...]

The trick. This product after the loop needs all f_t and all dr_t.

- The f_t are easy: the loop writes them out, as it writes its outputs.
- The dr_t exist in the backward loop only. But r_t = a_t + ..., so dr_t is also the gradient of a_t. TensorFlow passes
  all of these to the tensor a [time, batch, width], from which the loop has read the a_t. An operation between a and
  the loop therefore receives [dr_1; dr_2; ...] as its gradient.

`LoopOperand.carry` is this operation: an identity whose gradient function passes da on and also computes dW. Inside
the loop `stop_gradient` excludes W, so that no gradient is counted twice (f_t gets its gradient dr_t W^T as usual).

    forward                                            backward

    a ----> carry ----> a_1  a_2  a_3 ...              da <---- carry <---- dr_1  dr_2  dr_3 ...
              ^          +    +    +                              |  ^
    W --------+         f_t stop(W), in the loop       dW <-------+  |
                         ^    ^    ^                   f^T dr        |
                        f_1  f_2  f_3 ... ------------ fed ----------+

Hence the order of use: `carry` before the loop, `value` inside, `fed` after it. `carry` is built before the f_t are
known. Its gradient is built later, when TensorFlow differentiates, and only then reads the values passed to `fed`.

An attention's context has no term a_t that is known before the loop. The loop then reads and adds zeros, whose gradient
is dr_t, too: `AttentionInLoop.zeros`, `AttentionInLoop.outside`.

Users: `recurrent_cell.Product.in_loop` for kernels (`matrix_gradient`) and `attention.AttentionInLoop` for keys and
values, which are one matrix per sentence (`batch_gradient`). `recurrence`, `decoder` and `gnmt_decoder` run the loops
and afterwards pass on the f_t (`close`). The step of search does not use it. On a CPU this saves 5-7 % of a training
step. A test compares the gradients with finite differences.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


class LoopOperand:
    """One operand that all steps of one loop multiply with.

    Order of use: before the loop, pass the term a to `carry`. In the loop, multiply with `value` and add the term of
    that time. After the loop, pass the other factors of all times to `fed`.

    Args:
        operand: the operand W.
        gradient: function (f [time, ...], gradients dr [time, ...]) -> the gradient dW.

    Attributes:
        value: the operand without a gradient, for use inside the loop.
    """

    def __init__(self, operand: tf.Tensor, gradient: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> None:
        self.value = tf.stop_gradient(operand)
        self._operand = operand
        self._gradient = gradient
        self._fed: tf.Tensor | None = None

    def carry(self, term: tf.Tensor) -> tf.Tensor:
        """Return the term [time, ...] unchanged; through it the operand receives its gradient."""

        @tf.custom_gradient
        def carried(
            term: tf.Tensor, operand: tf.Tensor
        ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
            def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                if self._fed is None:
                    raise RuntimeError("differentiated before the loop's factors were passed to `fed`")
                return upstream, self._gradient(self._fed, upstream)

            return tf.identity(term), backward

        return carried(term, self._operand)

    def fed(self, values: tf.Tensor) -> None:
        """Store the factors that the loop multiplied with the operand, [time, ...]."""
        self._fed = values


def matrix_gradient(fed: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Return the gradient [rows, columns] of a matrix, from f [time, batch, rows] and dr [time, batch, columns]."""
    rows, columns = fed.shape[-1], upstream.shape[-1]
    return tf.matmul(tf.reshape(fed, [-1, rows]), tf.reshape(upstream, [-1, columns]), transpose_a=True)


def batch_gradient(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Return the sum over time of outer products: [time, batch, n], [time, batch, m] -> [batch, n, m]."""
    return tf.matmul(tf.transpose(left, [1, 2, 0]), tf.transpose(right, [1, 0, 2]))
