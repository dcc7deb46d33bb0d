"""Agreement: the same plan on every rank, or an error that names the first difference.

Buckets are exchanged in an order fixed by the graph, with no negotiation: that is right only if all graphs are equal.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from tfdist.transport.interfaces import Channel, DisagreementError


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


def agree(channel: Channel, lines: Sequence[str], place: str) -> None:
    """Compare the ranks' plans: their digests, and the plans themselves if those differ.

    Collective: the channel's group.

    Raises:
      DisagreementError: naming the first line that differs and the ranks on both sides.
    """
    if not _same(channel, lines, place):
        check(channel.all_gather_object(list(lines), place))


def common(channel: Channel, lines: Sequence[str], place: str) -> set[str]:
    """The lines that all ranks have equally often. Collective: the channel's group."""
    if _same(channel, lines, place):
        return set(lines)
    counts = [Counter(other) for other in channel.all_gather_object(list(lines), place)]
    return {line for line in lines if len({count[line] for count in counts}) == 1}


def _same(channel: Channel, lines: Sequence[str], place: str) -> bool:
    number = int.from_bytes(bytes.fromhex(digest(lines))[:7], "big")  # what a rank brings to an arrival is 64 bits wide
    return len(set(channel.arrive(place, number))) == 1
