"""A batch's way into a graph: the placeholders of a model's input, and where the model is asked for its loss."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.interface import Translator
from nmt.text.batches import Batch

v1 = tf.compat.v1


class BatchInput:
    """Placeholders for a `Batch` that a model of this architecture reads."""

    def __init__(self, architecture: Architecture) -> None:
        ids, lengths = [None, None], [None]
        self.source = v1.placeholder(tf.int32, architecture.source_shape, "source")
        self.source_lengths = v1.placeholder(tf.int32, lengths, "source_lengths")
        self.target_in = v1.placeholder(tf.int32, ids, "target_in")
        self.target_out = v1.placeholder(tf.int32, ids, "target_out")
        self.target_lengths = v1.placeholder(tf.int32, lengths, "target_lengths")
        self.divisor = v1.placeholder(tf.float32, [], "divisor")

    def loss_sum(self, translator: Translator, num_sampled: int = 0) -> tf.Tensor:
        """The translator's summed cross-entropy of the batch, a float32 scalar; see `Translator.loss_sum`."""
        return translator.loss_sum(
            self.source, self.source_lengths, self.target_in, self.target_out, self.target_lengths, num_sampled
        )

    def feed(self, batch: Batch) -> dict[tf.Tensor, Any]:
        """What a session is fed for this batch."""
        return {
            self.source: batch.source,
            self.source_lengths: batch.source_lengths,
            self.target_in: batch.target_in,
            self.target_out: batch.target_out,
            self.target_lengths: batch.target_lengths,
            self.divisor: batch.divisor,
        }
