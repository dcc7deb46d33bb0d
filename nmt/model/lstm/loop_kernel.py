"""Product with one kernel in all steps of a loop, in the form that a CPU computes fastest.

A step multiplies few rows, one for each sentence, with a large kernel [rows, columns]. The library rearranges (packs)
the kernel in each step, which for few rows takes as long as the product. It takes longest if the rows are a power of
two apart, as with 4 x 256 columns: they compete for the same cache lines. Packing the kernel's transpose takes half as
long, but Eigen needs it as the left operand. 128 rows times 512 x 1024, and times 1024 x 2048, on one core of a Zen 3,
GFLOP/s:

               x W       x (W^T)^T    (W^T x^T)^T
    oneDNN    37, 36       63, 59        60, 57
    Eigen     38, 39       24, 17        63, 60

The kernel is therefore transposed once, before the loop. The gradient of x, a product with W^T, uses W in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from nmt.model.lstm.deferred_gradients import LoopOperand, matrix_gradient

_ONEDNN: bool = _pywrap_util_port.IsMklEnabled()  # the library that multiplies; there is no public function


class LoopKernel(LoopOperand):
    """A kernel that all steps of one loop multiply with; see `LoopOperand` for the order of use.

    Args:
        kernel: the kernel, [rows, columns].
    """

    def __init__(self, kernel: tf.Tensor) -> None:
        super().__init__(kernel, matrix_gradient)
        self._transposed = tf.stop_gradient(tf.transpose(self.value))

    def times(self, fed: tf.Tensor) -> tf.Tensor:
        """Return the product [batch, columns] of `fed` [batch, rows] with the kernel; called inside the loop."""

        @tf.custom_gradient
        def product(fed: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return _product(fed, self._transposed), lambda upstream: _product(upstream, self.value)

        return product(fed)


def for_search(kernel: tf.Tensor) -> tf.Tensor:
    """Return the kernel without a gradient: mixed precision then casts it once, before the search loop."""
    return tf.stop_gradient(kernel)


def _product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Return left times right transposed, [n, k], [m, k] -> [n, m], for an m that is much larger than n."""
    if _ONEDNN:
        return tf.matmul(left, right, transpose_b=True)
    return tf.transpose(tf.matmul(right, left, transpose_b=True))
