"""First step: the protocol of sessions, functions and ``fit`` by which ranks agree, and begin with rank 0's values.

Each rank arrives with a purpose, a digest of its plan, and variables that can be read and set. If all have the same
purpose, their digests are compared before anything is sent. Then one rank's values are sent to all. Ranks in an
initialiser and ranks before their first step can meet too. After such a round the ranks in the initialiser continue.
Ranks before a step stay for more rounds, until all ranks are before a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tfdist.transport import agreement
from tfdist.transport.interfaces import Channel, DisagreementError

STEP, INITIALISER = "step", "initialiser"
PLACE = "the exchange of variables before a first step"
NAMES = "the comparison of the names of what is trained"
Values = Mapping[str, np.ndarray]


class Variables(Protocol):
    """Variables that can be read and set, wherever they are."""

    def read(self) -> dict[str, np.ndarray]:
        """Return the values by name, of variables that have a value."""

    def load(self, values: Values) -> None:
        """Set the variables; unknown names are skipped."""


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


def begin(channel: Channel, visitor: Participant, variables: Variables) -> None:
    """Agree, and take the root's values if any rank wants them.

    Collective: all ranks; ranks in an initialiser may join for one round.

    Raises:
      DisagreementError: the ranks' plans differ.
    """
    complete = False
    while not complete:
        complete, values = meet(channel, visitor, variables.read)
        if channel.rank != visitor.root and values:
            variables.load(values)


def meet(channel: Channel, visitor: Participant, read: Callable[[], Values]) -> tuple[bool, dict[str, np.ndarray]]:
    """Run one round of the protocol.

    Collective: all ranks.

    Args:
      channel: channel of all ranks.
      visitor: this rank.
      read: function that returns this rank's values; called on the root if any rank wants them.

    Returns:
      Whether all ranks have the same purpose, and the root's values by variable name (empty if no rank wants them).
    """
    digest = agreement.digest(visitor.plan)
    said = (visitor.purpose, digest, visitor.broadcasts, visitor.own)
    visitors: list[tuple[str, str, bool, tuple[str, ...]]] = channel.all_gather_object(said, PLACE)
    purposes = {purpose for purpose, *_ in visitors}
    if len(purposes) == 1 and len({digest for _, digest, *_ in visitors}) > 1:
        if visitor.purpose == INITIALISER:
            names = [line.split()[1] for line in visitor.plan]
            first: list[str] = channel.broadcast_object(names, PLACE)
            if any(channel.arrive(PLACE, int(names != first))):
                raise DisagreementError(
                    "the ranks are in different initialisers. Run one after the other, in the same order on all "
                    "ranks, or all variables together by tf.compat.v1.global_variables_initializer()"
                )
        agreement.explain(channel, visitor.plan, PLACE)
    values: dict[str, np.ndarray] = {}
    if any(broadcasts for _, _, broadcasts, _ in visitors):
        values = send(channel, read() if channel.rank == visitor.root else {}, visitor.root)
    for name in set.intersection(*(set(own) for *_, own in visitors)):
        values.pop(f"{name}:0", None)
    return len(purposes) == 1, values


def send(channel: Channel, values: Values, root: int = 0) -> dict[str, np.ndarray]:
    """Send one rank's values to all ranks and return them. Names, dtypes and shapes go first. Collective: all ranks."""
    plain = {n: np.asarray(v, order="C") for n, v in values.items() if v.dtype != object}
    other = {n: v for n, v in values.items() if v.dtype == object}  # strings
    header: Any = ([(n, v.dtype, v.shape) for n, v in plain.items()], other)
    shapes, other = channel.broadcast_object(header, PLACE, root)
    result: dict[str, np.ndarray] = dict(other)
    for name, dtype, shape in shapes:
        value = plain[name] if name in plain else np.empty(shape, dtype)
        if value.size:
            channel.broadcast(value, root)
        result[name] = value
    return result
