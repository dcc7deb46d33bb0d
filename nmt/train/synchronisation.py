"""Synchronisation: settings of the exchanges between ranks; the library `tfdist` defines their details."""

from __future__ import annotations

from dataclasses import dataclass

SYNCS = ("gradients", "average", "bmuf", "diloco")
BLOCK_STATES = ("reset", "average", "keep")
COMPRESSIONS = ("none", "bf16", "fp16", "int8", "int4", "int2")


@dataclass(frozen=True)
class Synchronisation:
    """Settings of the synchronisation of the ranks' weights.

    Attributes:
        sync: "gradients" averages gradients in each step; the others synchronise weights after each block of local
            steps: "average", "bmuf" with block momentum (Chen, Huo 2016), and "diloco" (Douillard et al. 2023).
        block_steps: number of steps of a block.
        block_momentum: factor of the previous block's change; None, here and below, for the default of `sync`.
        block_learning_rate: factor of the change within a block.
        block_scale: in place of `block_learning_rate`, which is then scale * ranks * (1 - momentum).
        block_nesterov: whether a block starts from weights that are moved ahead by the momentum (Nesterov).
        block_state: treatment of the optimizer's state at the end of a block, one of `BLOCK_STATES`.
        block_warmup: number of steps with averaged gradients before the first block.
        block_fragments: number of groups of weights that are exchanged in turn.
        block_delay: number of steps between the beginning of an exchange and the use of its result.
        block_alpha: share of a rank's own weights when such a result is merged; None for the default.
        compression: dtype in which gradients or changes of blocks travel, one of `COMPRESSIONS`; None for that of the
            environment.
    """

    sync: str = "gradients"
    block_steps: int = 0
    block_momentum: float | None = None
    block_learning_rate: float | None = None
    block_scale: float | None = None
    block_nesterov: bool | None = None
    block_state: str | None = None
    block_warmup: int = 0
    block_fragments: int = 1
    block_delay: int = 0
    block_alpha: float | None = None
    compression: str | None = None
