"""Synchronisation: what the ranks of a training exchange, and how often; the library that does it knows more."""

from __future__ import annotations

from dataclasses import dataclass

SYNCS = ("gradients", "average", "bmuf")
BLOCK_STATES = ("reset", "average", "keep")


@dataclass(frozen=True)
class Synchronisation:
    """How the ranks' weights are kept together.

    Attributes:
        sync: "gradients", averaged in each step; or, after each block of local steps, weights: "average", or "bmuf",
            filtered (Chen, Huo 2016).
        block_steps: steps of a block.
        block_momentum: what is left of the last block's change; None: 1 - 1/ranks.
        block_learning_rate: what a block's own change counts.
        block_nesterov: whether a block begins where the momentum leads.
        block_state: what becomes of the optimizer's own state at a block's end.
        block_warmup: steps with averaged gradients before the first block.
    """

    sync: str = "gradients"
    block_steps: int = 0
    block_momentum: float | None = None
    block_learning_rate: float = 1.0
    block_nesterov: bool = False
    block_state: str = "reset"
    block_warmup: int = 0
