"""How well a checkpoint predicts a text: perplexity, in a graph and a session of its own, without dropout."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.model.trained import TrainedModel
from nmt.model.translator import Translator
from nmt.text.batches import eval_batches
from nmt.text.corpus import ParallelCorpus
from nmt.train.loss import perplexity
from nmt.train.step import BatchInput


@dataclass(frozen=True)
class LikelihoodSettings:
    """Limits of length in tokens (None or 0 for none), and sentences scored together."""

    src_max_len: int | None = None
    tgt_max_len: int | None = None
    batch_size: int = 128


class LikelihoodModel(TrainedModel[LikelihoodSettings]):
    """Scores texts by the weights in its session."""

    def _build(self, translator: Translator) -> None:
        self._input = BatchInput()
        self._loss_sum = self._input.loss_sum(translator)

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
