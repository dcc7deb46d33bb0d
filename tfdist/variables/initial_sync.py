"""First step, the one protocol of sessions, functions and ``fit``: all agree, then begin with rank 0's values.

A rank comes with a purpose, the digest of what all must have alike, and variables that can be read and set. If all came
for the same purpose their digests are compared before anything is sent; then one rank's values go to all. A rank in an
initialiser and a rank before its first step can meet too: a round serves those who came from the initialiser, who then
go on; ranks before a step stay until all are there.
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
        """The values by name, of those that have one."""

    def load(self, values: Values) -> None:
        """Set them; names that are not known here are left out."""


@dataclasses.dataclass(frozen=True)
class Visitor:
    """What a rank says when it comes.

    Attributes:
      purpose: ``STEP``: about to train; ``INITIALISER``: has just drawn its own values.
      plan: what all that come for this purpose must have alike, in lines: their communication, or their variables.
      broadcasts: wants the root's values.
      own: names of variables that it has assigned to since a common initialiser, and that are not trained. Those that
        every rank has assigned to, gradients that are being accumulated for example, stay each rank's own.
      root: whose values.
    """

    purpose: str
    plan: Sequence[str]
    broadcasts: bool = True
    own: tuple[str, ...] = ()
    root: int = 0


def begin(channel: Channel, visitor: Visitor, variables: Variables) -> None:
    """Agree, and take the root's values if any rank wants them.

    Collective: all ranks; those that are in an initialiser may join for a round.

    Raises:
      DisagreementError: the ranks' plans differ.
    """
    complete = False
    while not complete:
        complete, values = meet(channel, visitor, variables.read)
        if channel.rank != visitor.root and values:
            variables.load(values)


def meet(channel: Channel, visitor: Visitor, read: Callable[[], Values]) -> tuple[bool, dict[str, np.ndarray]]:
    """One round.

    Collective: all ranks.

    Args:
      channel: of all ranks.
      visitor: this rank.
      read: its values; called on the root if any rank wants them.

    Returns:
      Whether all ranks came for the same purpose, and the root's values by variable name (empty if nobody wants them).
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
    """One rank's values, first their names, dtypes and shapes, then the bytes. Collective: all ranks."""
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
