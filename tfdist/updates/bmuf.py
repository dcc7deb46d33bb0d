"""BMUF and DiLoCo: new values of the variables at the end of a block of local steps.

Blockwise model-update filtering: K. Chen and Q. Huo, "Scalable training of deep learning machines by incremental block
training with intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016, sections 2.2, 2.3.
G(t) is the mean over the ranks of what block t has changed, from Wg(t-1) on::

    D(t) = momentum * D(t-1) + rate * G(t)
    Wg(t) = Wg(t-1) + D(t)
    Wg(t) = Wg(t-1) + rate * G(t) + momentum * D(t)    with Nesterov's momentum

DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1) has another description of the same formula. The outer
optimizer is SGD with Nesterov's momentum in PyTorch's form, and its gradient is -G(t). Only the defaults differ.

Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, sections 2.2 and 2.3) exchanges fragments of the variables in
turn. A rank goes on for some steps, and then merges Wg(t) into its own values W: alpha * W + (1 - alpha) * Wg(t).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdist.core.settings import Settings, SettingsError


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
      fragments: number of groups of variables that are exchanged in turn.
      delay: number of steps between the beginning of an exchange and the use of its result.
      alpha: share of a rank's own values when the result of a delayed exchange is merged, from 0 to 1.
    """

    steps: int
    warmup: int
    state: str
    plain: bool
    momentum: float
    learning_rate: float
    nesterov: bool
    fragments: int = 1
    delay: int = 0
    alpha: float = 0.0

    @classmethod
    def of(cls, settings: Settings, size: int) -> BlockSettings | None:
        """Make a rule from the settings; return None if gradients are averaged in each step."""
        if settings.sync == "gradients":
            return None
        plain, value = settings.sync == "average", settings.of_blocks
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
            fragments=settings.block_fragments,
            delay=settings.block_delay,
            alpha=settings.block_alpha if settings.block_delay else 0.0,
        )

    @property
    def streams(self) -> bool:
        """Whether the ranks never have the same values of all variables, unless a block is ended for them."""
        return self.fragments > 1 or self.delay > 0

    @property
    def between(self) -> int:
        """Number of steps from the exchange of one fragment to the next."""
        return self.steps // self.fragments

    def __str__(self) -> str:
        """Return all settings as text, which the ranks compare."""
        return ", ".join(f"{name}: {value}" for name, value in dataclasses.asdict(self).items())

    def filtered(self, change: Any, start: Any, last: Any) -> tuple[Any, Any]:
        """Filter one variable at a block's end.

        Args:
          change: mean over the ranks of what the block has changed, G(t): a tensor or an array of any shape.
          start: value at the block's beginning, Wg(t-1), of the same shape.
          last: D(t-1), of the same shape; ignored without a filter.

        Returns:
          Wg(t) and D(t).
        """
        if self.plain:
            return start + change, last
        own = self.learning_rate * change
        filtered = self.momentum * last + own
        return start + (own + self.momentum * filtered if self.nesterov else filtered), filtered

    def mixed(self, own: Any, filtered: Any) -> Any:
        """Return a rank's own value after a delay, mixed with the filtered one: tensors or arrays of the same shape."""
        return self.alpha * own + (1 - self.alpha) * filtered


def fragments_of(layers: Sequence[str], sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide variables into fragments: whole layers, in turn, of about the same size.

    The largest layer that is left goes to the smallest fragment. So equal layers are dealt in turn (Streaming DiLoCo,
    section 2.2, "strided").

    Args:
      layers: layer of each variable.
      sizes: number of elements of each variable.
      count: number of fragments.

    Returns:
      For each fragment, the positions of its variables, ascending.

    Raises:
      SettingsError: there are fewer layers than fragments.
    """
    members: dict[str, list[int]] = {}
    for position, layer in enumerate(layers):
        members.setdefault(layer, []).append(position)
    if len(members) < count:
        raise SettingsError(
            f"block_fragments is {count}, but the trained variables are in {len(members)} layers: a fragment is at "
            f"least one layer. Set at most {len(members)} fragments"
        )
    found: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for own in sorted(members.values(), key=lambda positions: -sum(sizes[p] for p in positions)):
        smallest = totals.index(min(totals))
        found[smallest] += own
        totals[smallest] += sum(sizes[p] for p in own)
    return [sorted(positions) for positions in found]
