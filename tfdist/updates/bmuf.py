"""Block filter: what becomes of the variables at the end of a block of local steps.

Blockwise model-update filtering: K. Chen and Q. Huo, "Scalable training of deep learning machines by incremental block
training with intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016, sections 2.2 and
2.3: G(t) = mean - Wg(t-1); D(t) = momentum * D(t-1) + rate * G(t); W(t) = W(t-1) + D(t); and every rank goes on from
Wg(t) = W(t), or with Nesterov's momentum from W(t) + momentum * D(t).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdist.core.settings import Settings


@dataclasses.dataclass(frozen=True)
class Rule:
    """How blocks are made and filtered.

    Attributes:
      steps: of a block.
      warmup: steps before the first block, of which the gradients are averaged.
      state: what becomes of the optimizer's own state at a block's end: ``reset``, ``average`` or ``keep``.
      plain: the mean takes the variables' place, and there is no filter.
      momentum: what is left of the last change, from 0 to below 1.
      learning_rate: what a block's own change counts, above 0.
      nesterov: the next block begins where the momentum leads.
    """

    steps: int
    warmup: int
    state: str
    plain: bool
    momentum: float
    learning_rate: float
    nesterov: bool

    @classmethod
    def of(cls, settings: Settings, size: int) -> Rule | None:
        """By the settings; None where gradients are averaged in each step."""
        if settings.sync == "gradients":
            return None
        plain = settings.sync == "average"
        momentum = float(settings.block_momentum) if settings.block_momentum else 1 - 1 / size
        return cls(
            steps=settings.block_steps,
            warmup=settings.block_warmup,
            state=settings.block_state,
            plain=plain,
            momentum=0.0 if plain else momentum,
            learning_rate=1.0 if plain else settings.block_learning_rate,
            nesterov=settings.block_nesterov,
        )

    @property
    def lookahead(self) -> float:
        """How many times its last change the next block begins ahead of what the filter has."""
        return self.momentum if self.nesterov else 0.0

    def filtered(self, mean: Any, start: Any, change: Any, lookahead: Any) -> tuple[Any, Any]:
        """One variable at a block's end.

        Args:
          mean: over the ranks: a tensor or an array of any shape.
          start: what the block began with, Wg(t-1), of the same shape.
          change: the last block's, D(t-1), of the same shape.
          lookahead: with which the block began.

        Returns:
          What the next block begins with, Wg(t); and D(t).
        """
        last = start - lookahead * change  # W(t-1)
        change = self.momentum * change + self.learning_rate * (mean - start)
        return last + (1.0 + self.lookahead) * change, change
