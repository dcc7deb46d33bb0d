"""SyncBatchNormalization: batch normalization with the moments of all ranks' batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc,name-defined]
    """Keras's BatchNormalization with ``synchronized=True``: its moments are those of all ranks' batches.

    Args:
      fused: must not be True.
      **kwargs: arguments of Keras's layer.

    Raises:
      ValueError: ``fused`` is True.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True: leave it out")
        super().__init__(**{**kwargs, "synchronized": True})
