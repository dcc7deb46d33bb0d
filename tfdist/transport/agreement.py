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


def order(channel: Channel, names: Sequence[str], place: str) -> list[int]:
    """How to bring what has these names into rank 0's order, if all ranks have the same names; else as it is.

    Collective: the channel's group.
    """
    if _same(channel, names, place):
        return list(range(len(names)))
    ranks: list[list[str]] = channel.all_gather_object(list(names), place)
    if len({frozenset(Counter(other).items()) for other in ranks}) > 1:
        return list(range(len(names)))
    return _places(names, ranks[0])


def check_order(channel: Channel, names: Sequence[str], place: str) -> None:
    """Names stand in the same order on all ranks, unless a rank has other names.

    Collective: the channel's group.

    Raises:
      DisagreementError: the same names stand in another order.
    """
    if _same(channel, names, place):
        return
    ranks: list[list[str]] = channel.all_gather_object(list(names), place)
    counts = Counter(ranks[0])
    for rank, other in enumerate(ranks):
        if other != ranks[0] and Counter(other) == counts:
            mine, theirs = next((a, b) for a, b in zip(ranks[0], other, strict=True) if a != b)
            raise DisagreementError(
                f"the ranks compute gradients of the same variables in another order: where rank 0 has {mine}, rank "
                f"{rank} has {theirs}. Build layers in the same order on every rank: not in that of a set, say."
            )


def paired(channel: Channel, names: Sequence[tuple[str, str]], place: str) -> list[int]:
    """Which of what has these names all ranks have, in an order that is the same on all.

    Collective: the channel's group.

    Args:
      channel: of the ranks.
      names: of each, in full, and without what depends on what else a rank has made.
      place: where this is, in words.

    Returns:
      Positions in ``names``. What has the same full names everywhere is paired by these. Else what all ranks have
      equally often by its shorter name is, in the order in which each has made it.
    """
    if _same(channel, [f"{full} {short}" for full, short in names], place):
        return list(range(len(names)))
    ranks: list[list[tuple[str, str]]] = channel.all_gather_object(list(names), place)
    if len({frozenset(Counter(other).items()) for other in ranks}) == 1:
        return _places([f"{full} {short}" for full, short in names], [f"{full} {short}" for full, short in ranks[0]])
    counts = [Counter(short for _, short in other) for other in ranks]
    wanted = [short for _, short in ranks[0] if len({count[short] for count in counts}) == 1]
    return _places([short for _, short in names], wanted)


def _places(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where each of the wanted names stands; one that stands several times is taken in that order."""
    where: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        where.setdefault(name, []).append(place)
    taken: Counter[str] = Counter()
    places = []
    for name in wanted:
        places.append(where[name][taken[name]])
        taken[name] += 1
    return places


def number(lines: Sequence[str]) -> int:
    """A plan's digest as a number below 2^56: what a rank brings to an arrival is 64 bits wide."""
    return int.from_bytes(bytes.fromhex(digest(lines))[:7], "big")


def _same(channel: Channel, lines: Sequence[str], place: str) -> bool:
    return len(set(channel.arrive(place, number(lines)))) == 1
