"""Hooks where BatchNormalization with ``synchronized=True`` takes the moments of its batch, in Keras 3 and tf_keras.

Both add over the replicas of ``tf.distribute``, of which a rank has one: each would take its own batch, in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.graph.job import Job
from tfdist.hooks._batch_moments import BatchMoments
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps

_WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32}


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """See the module."""
    batch = BatchMoments(job)
    _keras(patches, batch)
    _tf_keras(patches, batch)


def _keras(patches: Patches, batch: BatchMoments) -> None:
    """``keras.ops.moments``: keras/src/backend/tensorflow/nn.py; and with a mask, which Keras does not synchronise at
    all: keras/src/layers/normalization/batch_normalization.py."""

    def compute(original: Callable[..., Any], x: Any, axes: Any, keepdims: bool) -> Any:
        return batch.moments(x, axes, keepdims) if batch.shared else original(x, axes, keepdims)

    def of_layer(original: Callable[..., Any], self: Any, inputs: Any, mask: Any) -> Any:
        if mask is None or not self.synchronized or not batch.shared:
            return original(self, inputs, mask)
        from keras.src import backend

        return batch.moments(inputs, self._reduction_axes, False, _with_channels(mask), backend.epsilon())

    for name in ("keras.src.backend.tensorflow.nn", "keras.src.backend.tensorflow.ops.nn"):  # the latter since 3.16
        patches.when_imported(
            name, lambda m: patches.replace(m, "_compute_moments_sync", compute, ("x", "axes", "keepdims"))
        )
    patches.when_imported(
        "keras.src.layers.normalization.batch_normalization",
        lambda m: patches.replace(m.BatchNormalization, "_moments", of_layer, ("self", "inputs", "mask")),
    )


def _tf_keras(patches: Patches, batch: BatchMoments) -> None:
    """tf_keras/src/layers/normalization/batch_normalization.py; SyncBatchNormalization is one of these too."""

    def compute(
        original: Callable[..., Any], self: Any, x: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None
    ) -> Any:
        if not batch.shared:
            return original(self, x, reduction_axes, keep_dims, mask=mask)
        wide = tf.cast(x, _WIDE.get(x.dtype, x.dtype))
        mean, variance = batch.moments(wide, reduction_axes, keep_dims, None if mask is None else _with_channels(mask))
        return tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)

    first = ("self", "x", "reduction_axes", "keep_dims")
    patches.when_imported(
        "tf_keras.src.layers.normalization.batch_normalization",
        lambda m: patches.replace(m.BatchNormalizationBase, "_sync_calculate_mean_and_var", compute, first),
    )


def _with_channels(mask: Any) -> tf.Tensor:
    """[batch, …], as both packages have it, for entries [batch, …, channels]."""
    return tf.expand_dims(tf.cast(mask, tf.bool), -1)
