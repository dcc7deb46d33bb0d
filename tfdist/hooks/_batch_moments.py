"""Batch moments: mean and variance over the batches of all ranks, for normalisation, with gradients.

A layer's loss on one rank depends on the samples of all: what flows back through a sum over the ranks is the sum of
what the ranks bring. The average of the weights' gradients is then that of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.graph.job import Job
from tfdist.graph.markers import numberless
from tfdist.graph.tensor_collectives import TensorCollectives


class BatchMoments:
    """What synchronised BatchNormalization takes for the moments of its batch.

    Args:
      job: the ranks.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._collectives = TensorCollectives(job, job.world)

    @property
    def shared(self) -> bool:
        """Whether there are other ranks that take part now."""
        return self._job.world.size > 1 and not self._job.switches.alone_depth

    def moments(
        self, x: tf.Tensor, axes: Sequence[int], keepdims: bool, mask: tf.Tensor | None = None, fuzz: float = 0.0
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance over axes and over the ranks, whose batches may be of different sizes.

        Two exchanges, since the mean of squares less the square of the mean loses what a large mean hides.

        Collective: all ranks, with the same dtype and the same sizes of the axes that remain; and so is the gradient.

        Args:
          x: floating-point; its static rank is known.
          axes: to be reduced.
          keepdims: whether they remain, with one entry each.
          mask: bool, in a shape that broadcasts to that of ``x``: which entries count; None: all.
          fuzz: is added to the number of entries.
        """
        counts = tf.ones_like(x)
        if mask is not None:
            counts *= tf.cast(mask, x.dtype)
            x = tf.where(mask, x, tf.zeros_like(x))
        sums = [tf.reduce_sum(part, axes, keepdims=True) for part in (x, counts)]
        total, count = tf.unstack(self._sum(tf.stack(sums)))
        mean = tf.math.divide_no_nan(total, count + fuzz)
        squares = tf.reduce_sum(counts * tf.math.squared_difference(x, mean), axes, keepdims=True)
        variance = tf.math.divide_no_nan(self._sum(squares), count + fuzz)
        return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))

    def _sum(self, x: tf.Tensor) -> tf.Tensor:
        # Keras numbers layers by what else a rank has built.
        return self._collectives.all_reduce(x, "sum", numberless(x.op.name) if is_symbolic(x) else "")
