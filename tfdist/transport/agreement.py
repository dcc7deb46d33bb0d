"""Agreement: the same plan on every rank, or an error that names the first difference.

Buckets are exchanged in an order fixed by the graph, with no negotiation: that is right only if all graphs are equal.
If plans differ, each rank compares its own plan with rank 0's, so that no rank gets the plans of all ranks.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tfdist.transport.errors import DisagreementError
from tfdist.transport.interfaces import Channel

_LISTED = 8  # ranks named in a message, at most


def digest(lines: Sequence[str]) -> str:
    """Return a digest of a plan: equal for equal plans."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


GRAPHS = (
    "the training graphs differ between ranks, first at exchange {}",
    "Every rank must build the same graph: look for a setting, variable, shape or order that depends on the rank or "
    "its data.",
)


def agree(channel: Channel, lines: Sequence[str], place: str, words: tuple[str, str] = GRAPHS) -> None:
    """Compare the digests of the ranks' plans, and the plans themselves if the digests differ.

    Collective: the channel's group.

    Args:
      channel: channel of the ranks.
      lines: lines of this rank's plan.
      place: description of this place, for messages.
      words: the message for plans that differ, with ``{}`` for the number of the first such line; and the remedy.

    Raises:
      DisagreementError: the plans differ; it names the first line that differs and the ranks on both sides.
    """
    if not _same(channel, lines, place):
        explain(channel, lines, place, words)


def explain(channel: Channel, lines: Sequence[str], place: str, words: tuple[str, str] = GRAPHS) -> None:
    """Raise an error about the difference between plans, after their digests differed.

    Collective: the channel's group.

    Raises:
      DisagreementError: always; it names the first line that differs and the ranks on both sides.
    """
    first: list[str] = channel.broadcast_object(list(lines), place)
    pairs = itertools.zip_longest(lines, first)
    own = next((n for n, (line, other) in enumerate(pairs) if line != other), len(first))
    index = np.array([own], np.int64)
    channel.arrive(place)
    channel.all_reduce(index, "min")
    line = lines[index[0]] if index[0] < len(lines) else "nothing more"
    ranks_of: dict[str, list[int]] = {}
    for rank, other in enumerate(channel.all_gather_object(line, place)):
        ranks_of.setdefault(other, []).append(rank)
    sides = "; ".join(f"rank {_listed(ranks)}: {line}" for line, ranks in ranks_of.items())
    raise DisagreementError(f"{words[0].format(index[0])}: {sides}. {words[1]}")


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return ", ".join(map(str, ranks[:_LISTED])) + more


def order(channel: Channel, names: Sequence[str], place: str) -> list[int]:
    """Return the order that sorts ``names`` as on rank 0, if all ranks have the same names; else the given order.

    Collective: the channel's group.
    """
    if not _same(channel, names, place):
        first: list[str] = channel.broadcast_object(list(names), place)
        if all(channel.arrive(place, int(Counter(names) == Counter(first)))):
            return _places(names, first)
    return list(range(len(names)))


def check_order(channel: Channel, names: Sequence[str], place: str) -> None:
    """Check that names have the same order on all ranks, unless a rank has other names.

    Collective: the channel's group.

    Raises:
      DisagreementError: a rank has the same names in another order.
    """
    if _same(channel, names, place):
        return
    first: list[str] = channel.broadcast_object(list(names), place)
    differences = ((theirs, mine) for theirs, mine in zip(first, names, strict=False) if theirs != mine)
    moved = next(differences, None) if Counter(names) == Counter(first) else None
    flags = channel.arrive(place, int(moved is not None))
    if any(flags):
        rank = flags.index(1)
        theirs, mine = channel.broadcast_object(moved, place, rank)
        raise DisagreementError(
            f"the ranks compute gradients of the same variables in another order: where rank 0 has {theirs}, rank "
            f"{rank} has {mine}. Build layers in the same order on every rank, for example not in the order of a set."
        )


def paired(channel: Channel, names: Sequence[tuple[str, str]], place: str) -> list[int]:
    """Return which of the named objects all ranks have, in an order that is the same on all ranks.

    Collective: the channel's group.

    Args:
      channel: channel of the ranks.
      names: (full name, name without the parts that depend on other objects of the rank) of each object.
      place: description of this place, for messages.

    Returns:
      Positions in ``names``. If all ranks have the same full names, objects are paired by full name. Else objects are
      paired by the shorter names that all ranks have equally often, in the order in which each rank made them.
    """
    whole = [f"{full} {short}" for full, short in names]
    if _same(channel, whole, place):
        return list(range(len(names)))
    first: list[tuple[str, str]] = channel.broadcast_object(list(names), place)
    if all(channel.arrive(place, int(Counter(names) == Counter(first)))):
        return _places(whole, [f"{full} {short}" for full, short in first])
    own, counts = Counter(short for _, short in names), Counter(short for _, short in first)
    equally = np.array([own[short] == count for short, count in counts.items()], np.int64)
    channel.arrive(place)
    channel.all_reduce(equally, "min")
    wanted = {short for short, everywhere in zip(counts, equally, strict=True) if everywhere}
    return _places([short for _, short in names], [short for _, short in first if short in wanted])


def _places(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the position of each wanted name in ``names``; equal names are taken in the order of ``names``."""
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
    """Return a plan's digest as a number below 2^56: a rank brings 64 bits to an arrival."""
    return int.from_bytes(bytes.fromhex(digest(lines))[:7], "big")


def _same(channel: Channel, lines: Sequence[str], place: str) -> bool:
    return len(set(channel.arrive(place, number(lines)))) == 1
