"""Held variables: variables that must be the same on all ranks, and the interface to read and set them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.transport import agreement

TRAINED, READ = "trained", "read"  # kinds; another is ``of`` and an optimizer's class
DIGEST_BITS = 48


class ReplicaVariable(NamedTuple):
    """A variable that must be the same on all ranks.

    Attributes:
      name: name for messages; names of Keras depend on what else a rank has built.
      kind: ``trained``; ``read`` by the loss; or ``of`` and the class of the optimizer that the variable belongs to.
      variable: the TensorFlow variable.
      described: description of its dtype and shape.
    """

    name: str
    kind: str
    variable: Any
    described: str

    @property
    def line(self) -> str:
        """Line that describes the variable, and must be the same on all ranks."""
        return f"{self.kind} {self.described}"


class ReplicaVariables(Protocol):
    """Holder of variables, in a session or outside sessions.

    Attributes:
      complete: True if all objects that it was made for still exist.
      identity: key of a training; the same for the same variables.
    """

    @property
    def identity(self) -> Hashable: ...  # noqa: D102

    @property
    def complete(self) -> bool: ...  # noqa: D102

    def held(self) -> list[ReplicaVariable]:
        """Return all existing variables, in an order that is the same on all ranks."""

    def read(self, held: Sequence[ReplicaVariable]) -> Iterator[np.ndarray]:
        """Yield the values of variables."""

    def load(self, held: ReplicaVariable, value: np.ndarray) -> None:
        """Set one variable."""

    def given(self, held: ReplicaVariable) -> bool:
        """Return whether this rank's script has set a variable that the loss reads to its own value between steps."""

    def keep_own(self, held: ReplicaVariable) -> None:
        """Let each rank have its own value of a variable from now on."""


class BlockReplicas:
    """Variables that must be the same on all ranks in training by blocks of local steps; see ``ReplicaVariables``.

    Optimizers' variables are left out: each rank may keep its own.

    Args:
      holder: holder of all variables of the training.
      stand_in: function that returns a variable to compare in place of a trained variable.
    """

    def __init__(self, holder: ReplicaVariables, stand_in: Callable[[Any], Any] = lambda variable: variable) -> None:
        self._holder = holder
        self._stand_in = stand_in
        self.identity = holder.identity
        self.read = holder.read
        self.load = holder.load
        self.given = holder.given
        self.keep_own = holder.keep_own

    @property
    def complete(self) -> bool:
        return self._holder.complete

    def held(self) -> list[ReplicaVariable]:
        known = [one for one in self._holder.held() if one.kind in (TRAINED, READ)]
        return [one._replace(variable=self._stand_in(one.variable)) if one.kind == TRAINED else one for one in known]


def digest(holder: ReplicaVariables) -> int:
    """Return a number from 1 to 2^48 - 1, which is the same on ranks that hold the same values."""
    held = holder.held()
    return fingerprint(held, list(holder.read(held)))


def fingerprint(held: Sequence[ReplicaVariable], values: Sequence[np.ndarray]) -> int:
    """Return the number of ``digest`` for variables with these values."""
    lines = agreement.number([one.line for one in held])
    return (checksum(values, lines) & ((1 << DIGEST_BITS) - 1)) or 1
