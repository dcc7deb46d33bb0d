"""Hooks where BatchNormalization with ``synchronized=True`` computes its batch's moments, in Keras 3 and tf_keras.

Both sum over the replicas of ``tf.distribute``, and a rank has one replica. Without the hooks, each rank would silently
use only its own batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.graph.job import Job
from tfdist.graph.markers import numberless
from tfdist.graph.tensor_collectives import TensorCollectives
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps


class BatchMoments:
    """Moments over the batches of all ranks, for synchronised BatchNormalization.

    A layer's loss on one rank depends on the samples of all ranks. So the derivative of a sum over the ranks is the sum
    of the ranks' derivatives. The weights' averaged gradients then equal those of one process with the whole batch.

    Args:
      job: the ranks.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._collectives = TensorCollectives(job, job.world)

    @property
    def shared(self) -> bool:
        """Whether other ranks take part now."""
        return self._job.world.size > 1 and not self._job.switches.alone_depth

    def moments(
        self, x: tf.Tensor, axes: Sequence[int], keepdims: bool, mask: tf.Tensor | None = None, fuzz: float = 0.0
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance over axes and over the ranks, whose batches may have different sizes.

        This takes two exchanges: the mean of squares minus the squared mean loses precision if the mean is large.

        Collective: all ranks, with the same dtype and the same sizes of the remaining axes. The gradient is collective
        too.

        Args:
          x: floating-point tensor with a known static rank.
          axes: axes to reduce.
          keepdims: True: the reduced axes remain, with one entry each.
          mask: bool, in a shape that broadcasts to the shape of ``x``: True for entries that count; None: all count.
          fuzz: number that is added to the number of entries.
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
        # Keras's layer numbers depend on what else a rank has built.
        return self._collectives.all_reduce(x, "sum", numberless(x.op.name) if is_symbolic(x) else "")


_WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32}


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    batch = BatchMoments(job)
    _keras(patches, batch)
    _tf_keras(patches, batch)


def _keras(patches: Patches, batch: BatchMoments) -> None:
    """Hook ``keras.ops.moments`` (keras/src/backend/tensorflow/nn.py), and moments with a mask, which Keras does not
    synchronise at all (keras/src/layers/normalization/batch_normalization.py)."""

    def compute(original: Callable[..., Any], x: Any, axes: Any, keepdims: bool) -> Any:
        return batch.moments(x, axes, keepdims) if batch.shared else original(x, axes, keepdims)

    def of_layer(original: Callable[..., Any], self: Any, inputs: Any, mask: Any) -> Any:
        if mask is None or not self.synchronized or not batch.shared:
            return original(self, inputs, mask)
        from keras.src import backend

        return batch.moments(inputs, self._reduction_axes, False, _with_channels(mask), backend.epsilon())

    for module in ("nn", "ops.nn"):  # ops.nn since 3.16
        where, first = f"keras.src.backend.tensorflow.{module}", ("x", "axes", "keepdims")
        patches.when_imported(where, patches.replace, "_compute_moments_sync", compute, first)
    where = "keras.src.layers.normalization.batch_normalization:BatchNormalization"
    patches.when_imported(where, patches.replace, "_moments", of_layer, ("self", "inputs", "mask"))


def _tf_keras(patches: Patches, batch: BatchMoments) -> None:
    """Hook tf_keras/src/layers/normalization/batch_normalization.py; SyncBatchNormalization is a subclass."""

    def compute(
        original: Callable[..., Any], self: Any, x: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None
    ) -> Any:
        if not batch.shared:
            return original(self, x, reduction_axes, keep_dims, mask=mask)
        wide = tf.cast(x, _WIDE.get(x.dtype, x.dtype))
        mean, variance = batch.moments(wide, reduction_axes, keep_dims, None if mask is None else _with_channels(mask))
        return tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)

    first = ("self", "x", "reduction_axes", "keep_dims")
    where = "tf_keras.src.layers.normalization.batch_normalization:BatchNormalizationBase"
    patches.when_imported(where, patches.replace, "_sync_calculate_mean_and_var", compute, first)


def _with_channels(mask: Any) -> tf.Tensor:
    """Return a mask [batch, …], as both packages pass it, in a shape for entries [batch, …, channels]."""
    return tf.expand_dims(tf.cast(mask, tf.bool), -1)
