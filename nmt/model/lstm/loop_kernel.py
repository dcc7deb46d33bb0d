"""A loop's product with one and the same kernel, in the form in which a processor does it fastest.

A step multiplies few rows, one for each sentence, with a large kernel [rows, columns]. A library first rearranges
(packs) the kernel, each time anew, which for few rows takes as long as the product; and longest where the kernel's rows
lie a power of two apart, as those of 4 x 256 columns do, which compete for the same places of the caches. From the
kernel's transpose that takes half as long, but Eigen wants it on the left. 128 rows times 512 x 1024, and times 1024 x
2048, on one core of a Zen 3, GFLOP/s:

               x W       x (W^T)^T    (W^T x^T)^T
    oneDNN    37, 36       63, 59        60, 57
    Eigen     38, 39       24, 17        63, 60

So the kernel is transposed once, ahead of the loop. The gradient of x, which is a product with W^T, is formed with W
itself in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from nmt.model.lstm.deferred_gradients import LoopOperand, matrix_gradient

_ONEDNN: bool = _pywrap_util_port.IsMklEnabled()  # what multiplies; TensorFlow has no public name for it


class LoopKernel(LoopOperand):
    """A kernel that all steps of one loop multiply with; see `LoopOperand` for the order of use.

    Args:
        kernel: [rows, columns].
    """

    def __init__(self, kernel: tf.Tensor) -> None:
        super().__init__(kernel, matrix_gradient)
        self._transposed = tf.stop_gradient(tf.transpose(self.value))

    def times(self, fed: tf.Tensor) -> tf.Tensor:
        """[batch, rows] -> the product [batch, columns], inside the loop."""

        @tf.custom_gradient
        def product(fed: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return _product(fed, self._transposed), lambda upstream: _product(upstream, self.value)

        return product(fed)


def for_search(kernel: tf.Tensor) -> tf.Tensor:
    """The same without a gradient, which half precision then converts once, ahead of search's loop."""
    return tf.stop_gradient(kernel)


def _product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """[n, k], [m, k] -> [n, m], for an m that is much larger than n."""
    if _ONEDNN:
        return tf.matmul(left, right, transpose_b=True)
    return tf.transpose(tf.matmul(right, left, transpose_b=True))
