"""The same plan on every rank, or an error that names the first difference.

Buckets are exchanged in an order fixed by the graph, with no negotiation: that is right only if all graphs are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tfdist.transport.interfaces import DisagreementError


def digest(lines: Sequence[str]) -> str:
    """A short stand-in for a plan: equal for equal plans."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check(plans: Sequence[Sequence[str]]) -> None:
    """Compare the ranks' plans.

    Args:
      plans: for each rank its lines, such as ``gradient w float32 [3, 4]``.

    Raises:
      DisagreementError: naming the first line that differs and the ranks on both sides.
    """
    for index in range(max(map(len, plans))):
        ranks_of: dict[str, list[int]] = {}
        for rank, plan in enumerate(plans):
            line = plan[index] if index < len(plan) else "nothing more"
            ranks_of.setdefault(line, []).append(rank)
        if len(ranks_of) > 1:
            sides = "; ".join(f"rank {', '.join(map(str, ranks))}: {line}" for line, ranks in ranks_of.items())
            raise DisagreementError(
                f"the training graphs differ between ranks, first at exchange {index}: {sides}. Every rank must build "
                "the same graph: look for a variable, shape or order that depends on the rank or on its data."
            )
