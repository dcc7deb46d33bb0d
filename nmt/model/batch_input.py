"""Batch input: the placeholders of a model's input, and the model's loss for them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.interface import Translator
from nmt.model.parts.softmax_cross_entropy import Losses
from nmt.text.batches import Batch

v1 = tf.compat.v1


class BatchInput:
    """Placeholders of a `Batch` for a model of this architecture."""

    def __init__(self, architecture: Architecture) -> None:
        ids, lengths = [None, None], [None]
        self.source = v1.placeholder(tf.int32, architecture.source_shape, "source")
        self.source_lengths = v1.placeholder(tf.int32, lengths, "source_lengths")
        self.target_in = v1.placeholder(tf.int32, ids, "target_in")
        self.target_out = v1.placeholder(tf.int32, ids, "target_out")
        self.target_lengths = v1.placeholder(tf.int32, lengths, "target_lengths")
        self.divisor = v1.placeholder(tf.float32, [], "divisor")

    def losses(
        self, translator: Translator, num_sampled: int = 0, label_smoothing: float = 0.0, r_drop: float = 0.0
    ) -> Losses:
        """Return the translator's summed losses of the batch, float32 scalars; see `Translator.losses`."""
        return translator.losses(
            self.source, self.source_lengths, self.target_in, self.target_out, self.target_lengths,
            num_sampled=num_sampled, label_smoothing=label_smoothing, r_drop=r_drop,
        )  # fmt: skip

    def feed(self, batch: Batch) -> dict[tf.Tensor, Any]:
        """Return the feed dictionary of a session for this batch."""
        return {
            self.source: batch.source,
            self.source_lengths: batch.source_lengths,
            self.target_in: batch.target_in,
            self.target_out: batch.target_out,
            self.target_lengths: batch.target_lengths,
            self.divisor: batch.divisor,
        }
