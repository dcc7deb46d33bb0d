"""Held variables: variables that must be the same on all ranks, and the interface to read and set them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.transport import agreement

# Kinds; another is ``of`` and an optimizer's class.
TRAINED, READ, STATISTIC = "trained", "read", "a moving statistic"
DIGEST_BITS = 48
_START = "_tfdist_block_start"  # attribute of a trained variable: weak reference


class ReplicaVariable(NamedTuple):
    """A variable that must be the same on all ranks.

    Attributes:
      name: name for messages; names of Keras depend on what else a rank has built.
      kind: ``trained``; ``read`` by the loss; ``a moving statistic`` that it reads, which may differ; or ``of`` and the
        optimizer's class.
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

    def replicas(self) -> list[ReplicaVariable]:
        """Return all existing variables, in an order that is the same on all ranks."""

    def read(self, replicas: Sequence[ReplicaVariable]) -> Iterator[np.ndarray]:
        """Yield the values of variables."""

    def load(self, replica: ReplicaVariable, value: np.ndarray) -> None:
        """Set one variable."""

    def keep_own(self, replica: ReplicaVariable) -> None:
        """Let each rank have its own value of a variable from now on."""


class BlockReplicas:
    """Variables that must be the same on all ranks in training by blocks of local steps; see ``ReplicaVariables``.

    Optimizers' variables are left out: each rank may keep its own.

    Args:
      holder: holder of all variables of the training.
      starts: True to compare, in place of trained variables, the values with which their blocks began.
    """

    def __init__(self, holder: ReplicaVariables, starts: bool) -> None:
        self._holder = holder
        self._starts = starts
        self.identity = holder.identity
        self.read = holder.read
        self.load = holder.load
        self.keep_own = holder.keep_own

    @property
    def complete(self) -> bool:
        return self._holder.complete

    def replicas(self) -> list[ReplicaVariable]:
        known = [one for one in self._holder.replicas() if one.kind in (TRAINED, READ, STATISTIC)]
        return [one._replace(variable=_start_of(one.variable)) if self._starts else one for one in known]


def starts_from(variable: Any, start: Any) -> None:
    """Note the variable that has the value with which a trained variable's block began."""
    setattr(variable, _START, weakref.ref(start))


def _start_of(variable: Any) -> Any:
    start = getattr(variable, _START, lambda: None)()
    return variable if start is None else start


def digest(holder: ReplicaVariables) -> int:
    """Return a number from 1 to 2^48 - 1, which is the same on ranks that hold the same values."""
    replicas = holder.replicas()
    return fingerprint(replicas, list(holder.read(replicas)))


def fingerprint(replicas: Sequence[ReplicaVariable], values: Sequence[np.ndarray]) -> int:
    """Return the number of ``digest`` for variables with these values."""
    lines = agreement.number([one.line for one in replicas])
    return (checksum(values, lines) & ((1 << DIGEST_BITS) - 1)) or 1
