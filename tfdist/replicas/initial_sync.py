"""First step: the protocol of sessions, functions and ``fit`` by which ranks agree, and begin with rank 0's values.

Each rank arrives with a purpose, a digest of its plan, and variables that can be read and set. If all have the same
purpose, their digests are compared before anything is sent. Then the variables that differ get one rank's values.
Ranks in an initialiser and ranks before their first step can meet too. After such a round the ranks in the initialiser
continue. Ranks before a step stay for more rounds, until all ranks are before a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.transport import agreement
from tfdist.transport.interfaces import Channel

STEP, INITIALISER = "step", "initialiser"
PLACE = "the exchange of variables before a first step"
NAMES = "the comparison of the names of what is trained"
Values = Mapping[str, np.ndarray]
_WORDS = {
    STEP: agreement.GRAPHS,
    INITIALISER: (
        "the ranks are in different initialisers, first at variable {}",
        "Make the same variables on all ranks: Keras numbers those of models and optimizers as it makes them. Run "
        "initialisers one after the other in the same order, or tf.compat.v1.global_variables_initializer() alone.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Participant:
    """A rank that arrives, with the facts that it sends to the other ranks.

    Attributes:
      purpose: ``STEP``: about to train; ``INITIALISER``: has just drawn its own values.
      plan: lines that must be the same on all ranks with this purpose: their collectives, or their variables.
      broadcasts: True if the rank wants the root's values.
      own: names of untrained variables that the rank has assigned to since a common initialiser. Variables that every
        rank has assigned to stay each rank's own, for example accumulated gradients.
      root: rank that sends its values.
    """

    purpose: str
    plan: Sequence[str]
    broadcasts: bool = True
    own: tuple[str, ...] = ()
    root: int = 0


def begin(channel: Channel, visitor: Participant, read: Callable[[], Values], load: Callable[[Values], None]) -> None:
    """Agree, and take the root's values if any rank wants them.

    Collective: all ranks; ranks in an initialiser may join for one round.

    Args:
      channel: channel of all ranks.
      visitor: this rank.
      read: function that returns the values of the variables that have one, by name.
      load: function that sets variables by name; unknown names are skipped.

    Raises:
      DisagreementError: the ranks' plans differ.
    """
    complete = False
    while not complete:
        complete, values = meet(channel, visitor, read)
        if channel.rank != visitor.root and values:
            load(values)


def meet(channel: Channel, visitor: Participant, read: Callable[[], Values]) -> tuple[bool, dict[str, np.ndarray]]:
    """Run one round of the protocol.

    Collective: all ranks.

    Args:
      channel: channel of all ranks.
      visitor: this rank.
      read: function that returns this rank's values; called if any rank wants the root's.

    Returns:
      Whether all ranks have the same purpose; and the root's values of the variables that differ, by name (none if no
      rank wants them).
    """
    digest = agreement.digest(visitor.plan)
    said = (visitor.purpose, digest, visitor.broadcasts, visitor.own)
    visitors: list[tuple[str, str, bool, tuple[str, ...]]] = channel.all_gather_object(said, PLACE)
    purposes = {purpose for purpose, *_ in visitors}
    if len(purposes) == 1 and len({digest for _, digest, *_ in visitors}) > 1:
        agreement.explain(channel, visitor.plan, PLACE, _WORDS[visitor.purpose])
    if not any(broadcasts for _, _, broadcasts, _ in visitors):
        return len(purposes) == 1, {}
    kept = {f"{name}:0" for name in set.intersection(*(set(own) for *_, own in visitors))}
    values = {name: value for name, value in read().items() if name not in kept}
    return len(purposes) == 1, differing(channel, values, visitor.root)


def differing(channel: Channel, values: Values, root: int = 0) -> dict[str, np.ndarray]:
    """Return the root's values of the variables that have another value, or none, on some rank.

    Checksums go first: slots, and variables drawn from the same seed, are mostly the same already. Collective: all
    ranks.
    """
    own = {name: (value.dtype, value.shape, checksum([value])) for name, value in values.items()}
    roots: dict[str, tuple[np.dtype, tuple[int, ...], int]] = channel.broadcast_object(own, PLACE, root)
    if not roots:
        return {}
    differs = np.array([own.get(name) != facts for name, facts in roots.items()], np.uint8)
    channel.arrive(PLACE, size_bytes=differs.nbytes)
    channel.all_reduce(differs, "max")
    return {
        name: _sent(channel, values.get(name), dtype, shape, root)
        for (name, (dtype, shape, _)), sent in zip(roots.items(), differs, strict=True)
        if sent
    }


def _sent(channel: Channel, own: np.ndarray | None, dtype: np.dtype, shape: tuple[int, ...], root: int) -> np.ndarray:
    is_root = channel.rank == root
    if dtype.hasobject:  # strings
        return np.asarray(channel.broadcast_object(own if is_root else None, PLACE, root))
    value = np.asarray(own, order="C") if is_root else np.empty(shape, dtype)
    if value.size:
        channel.broadcast(value, root)
    return value
