"""How well a checkpoint predicts a text: perplexity, in a graph and a session of its own, without dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.initializers import Initializer
from nmt.model.translator import Translator
from nmt.text.batches import eval_batches
from nmt.text.corpus import ParallelCorpus
from nmt.text.vocabulary import Vocabulary
from nmt.train.loss import perplexity
from nmt.train.step import BatchInput


@dataclass(frozen=True)
class LikelihoodSettings:
    """Limits of length in tokens (None or 0 for none), and sentences scored together."""

    src_max_len: int | None = None
    tgt_max_len: int | None = None
    batch_size: int = 128


class LikelihoodModel:
    """Scores texts by the weights in its session.

    Attributes:
        session: where the weights are.
        saver: a `tf.compat.v1.train.Saver` that brings them there from a checkpoint.
    """

    def __init__(
        self,
        architecture: Architecture,
        src_vocab: Vocabulary,
        tgt_vocab: Vocabulary,
        settings: LikelihoodSettings,
    ) -> None:
        self._src_vocab, self._tgt_vocab, self._settings = src_vocab, tgt_vocab, settings
        with tf.Graph().as_default() as graph:
            self._input = BatchInput()
            self._loss_sum = self._input.loss_sum(Translator(architecture, Initializer()))
            self.saver: Any = tf.compat.v1.train.Saver()
        self.session: Any = tf.compat.v1.Session(graph=graph)

    def perplexity(self, corpus: ParallelCorpus) -> float:
        """exp(cross-entropy per target word, end marks counted) of all pairs with words on both sides."""
        loss_sum, words = 0.0, 0
        limits = self._settings
        for batch in eval_batches(
            corpus,
            self._src_vocab,
            self._tgt_vocab,
            limits.src_max_len,
            limits.tgt_max_len,
            limits.batch_size,
        ):
            loss_sum += float(self.session.run(self._loss_sum, self._input.feed(batch)))
            words += int(batch.target_lengths.sum())
        return perplexity(loss_sum, words)
