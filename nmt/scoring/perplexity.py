"""Perplexity: measures how well a model predicts a text, without dropout."""

from __future__ import annotations

import math

import numpy as np

from nmt.core.ranks import ONE_PROCESS, Ranks
from nmt.model.batch_input import BatchInput
from nmt.model.inference_model import TrainedModel
from nmt.model.interface import Translator
from nmt.model.session import memory_for
from nmt.text.batches import eval_batches
from nmt.text.corpus import ParallelCorpus


def perplexity(loss_sum: float, words: float) -> float:
    """Return exp(nats per target word, eos counted); infinity on overflow, NaN if there are no words.

    >>> perplexity(2 * math.log(8), 2)
    8.0
    """
    if words <= 0:
        return math.nan
    try:
        return math.exp(loss_sum / words)
    except OverflowError:
        return math.inf


class LikelihoodModel(TrainedModel):
    """Computes the cross-entropy of texts with the weights in its session."""

    def _build(self, translator: Translator) -> None:
        self._input = BatchInput(translator.architecture)
        self._loss_sum = self._input.losses(translator).words

    def perplexity(self, corpus: ParallelCorpus, ranks: Ranks = ONE_PROCESS) -> float:
        """Return exp(cross-entropy per target word, end marks counted) of all pairs with words on both sides.

        Collective: every rank of `ranks` calls, with equal weights in its model, and computes a share.
        """
        with ranks.alone("perplexity"):  # ranks with faster shares wait for the others
            sums = self.sums(corpus, ranks.rank, ranks.size)
        loss_sum, words = ranks.sum(np.array(sums, np.float64)).tolist()
        return perplexity(loss_sum, words)

    def sums(self, corpus: ParallelCorpus, rank: int = 0, size: int = 1) -> tuple[float, int]:
        """Return the cross-entropy in nats and the number of target words with end marks of rank `rank`'s batches.

        These are every `size`-th batch, starting with batch `rank`. The batches are the same for any number of ranks;
        the sums of all ranks add up to the sums of the text.
        """
        loss_sum, words = 0.0, 0
        config = self._config
        for batch in eval_batches(
            corpus,
            self._src_vocab,
            self._tgt_vocab,
            config.src_max_len_infer,
            config.tgt_max_len_infer,
            config.batch_size,
            rank,
            size,
            config.max_batch_tokens,
        ):
            with memory_for("a perplexity", batch.source, batch.target_in, "--src_max_len_infer, --tgt_max_len_infer"):
                loss_sum += float(self.session.run(self._loss_sum, self._input.feed(batch)))
            words += int(batch.target_lengths.sum())
        return loss_sum, words
