"""BMUF and DiLoCo: new values of the variables at the end of a block of local steps.

Blockwise model-update filtering: K. Chen and Q. Huo, "Scalable training of deep learning machines by incremental block
training with intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016, sections 2.2, 2.3::

    G(t) = mean - Wg(t-1)
    D(t) = momentum * D(t-1) + rate * G(t)
    W(t) = W(t-1) + D(t)

Every rank continues from Wg(t) = W(t), or with Nesterov's momentum from Wg(t) = W(t) + momentum * D(t).

DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1) has another description of the same formula. The outer
optimizer is SGD with Nesterov's momentum in PyTorch's form, and its gradient is -G(t). Its iterates are Wg(t), since
Wg(t) - Wg(t-1) = rate * G(t) + momentum * D(t). Only the defaults differ.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdist.core.settings import Settings

# Defaults of DiLoCo's outer optimizer (section 3 of the article); inner optimizers keep their state.
_DILOCO = {"block_momentum": 0.9, "block_learning_rate": 0.7, "block_nesterov": True, "block_state": "keep"}


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Settings of blocks and of their filter.

    Attributes:
      steps: number of local steps in a block.
      warmup: number of steps before the first block, in which gradients are averaged.
      state: treatment of the optimizer's own state at a block's end: ``reset``, ``average`` or ``keep``.
      plain: True if the variables are set to the mean, without a filter.
      momentum: factor of the last block's change, from 0 to below 1.
      learning_rate: factor of this block's change, above 0.
      nesterov: True if the next block begins ahead by the momentum.
    """

    steps: int
    warmup: int
    state: str
    plain: bool
    momentum: float
    learning_rate: float
    nesterov: bool

    @classmethod
    def of(cls, settings: Settings, size: int) -> BlockSettings | None:
        """Make a rule from the settings; return None if gradients are averaged in each step."""
        if settings.sync == "gradients":
            return None
        plain, defaults = settings.sync == "average", _DILOCO if settings.sync == "diloco" else {}
        usual = {name: settings.fields()[name].default for name in _DILOCO}

        def value(name: str) -> Any:
            found = getattr(settings, name)
            return found if name in settings.origins or found != usual[name] else defaults.get(name, found)

        momentum = value("block_momentum")
        factor = 0.0 if plain else 1 - 1 / size if momentum == "" else float(momentum)
        rate = 1.0 if plain else value("block_learning_rate")
        if settings.block_scale:  # section 2.3: C = rate / (size * (1 - momentum))
            rate = float(settings.block_scale) * size * (1 - factor)
        return cls(
            steps=settings.block_steps,
            warmup=settings.block_warmup,
            state=value("block_state"),
            plain=plain,
            momentum=factor,
            learning_rate=rate,
            nesterov=value("block_nesterov"),
        )

    @property
    def lookahead(self) -> float:
        """Factor of the last change by which the next block begins ahead of W(t)."""
        return self.momentum if self.nesterov else 0.0

    def filtered(self, mean: Any, start: Any, change: Any, lookahead: Any) -> tuple[Any, Any]:
        """Filter one variable at a block's end.

        Args:
          mean: mean over the ranks: a tensor or an array of any shape.
          start: value at the block's beginning, Wg(t-1), of the same shape.
          change: change by the last block, D(t-1), of the same shape.
          lookahead: value of ``lookahead`` at the block's beginning.

        Returns:
          The value with which the next block begins, Wg(t), and D(t).
        """
        last = start - lookahead * change  # W(t-1)
        change = self.momentum * change + self.learning_rate * (mean - start)
        return last + (1.0 + self.lookahead) * change, change
