"""Program: one session, or this process outside sessions. It reads and sets variables, and knows its replicas.

Replicas must be the same on all ranks: trained variables, the optimizers' variables, and what else the loss reads. Left
out are variables that the framework keeps for each rank (``of_each_rank``), states of random generators, and variables
that the script has given to ``tfdist.keep_own``.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tfdist.compat.variables import batch_statistic, of_each_rank, random_state
from tfdist.core.checksum import checksum
from tfdist.transport import agreement

# Kinds; another is ``of`` and an optimizer's class.
TRAINED, READ, STATISTIC = "trained", "read", "a moving statistic"
DIGEST_BITS = 48
_START = "_tfdist_block_start"  # attribute of a trained variable: weak reference


class Replica(NamedTuple):
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


def replica(variable: Any, name: str, kind: str | None, is_read: bool) -> Replica | None:
    """Return the replica that a TensorFlow variable is; None for a variable that may differ between ranks.

    Args:
      variable: the variable.
      name: name for messages.
      kind: kind of a trained variable or an optimizer's variable; None for others.
      is_read: True if the loss reads it.
    """
    dtype = variable.dtype.base_dtype
    if dtype in (tf.string, tf.variant) or random_state(variable):
        return None
    if kind is None:
        if not is_read or of_each_rank(variable):
            return None
        kind = STATISTIC if batch_statistic(variable) else READ
    return Replica(name, kind, variable, f"{dtype.name} {variable.shape}")


class Program(Protocol):
    """The variables of one session, or of this process outside sessions.

    Attributes:
      complete: True if all objects that it was made for still exist.
      identity: key of a training; the same for the same variables.
    """

    @property
    def identity(self) -> Hashable: ...  # noqa: D102

    @property
    def complete(self) -> bool: ...  # noqa: D102

    def replicas(self) -> list[Replica]:
        """Return all existing replicas, in an order that is the same on all ranks."""

    def read(self, variables: Sequence[Any]) -> Iterator[np.ndarray]:
        """Yield the values of variables; zeros for one that is not initialised, which another part may train."""

    def load(self, values: Iterable[tuple[Any, np.ndarray]]) -> None:
        """Set variables: pairs of a variable and its value."""

    def keep_own(self, variable: Any) -> None:
        """Let each rank have its own value of a variable from now on."""


class BlockProgram:
    """A program that trains by blocks of local steps; see ``Program``.

    Optimizers' variables are left out: each rank may keep its own.

    Args:
      program: the program.
      starts: True to compare, in place of trained variables, the values with which their blocks began.
    """

    def __init__(self, program: Program, starts: bool) -> None:
        self._program = program
        self._starts = starts
        self.identity = program.identity
        self.read = program.read
        self.load = program.load
        self.keep_own = program.keep_own

    @property
    def complete(self) -> bool:
        return self._program.complete

    def replicas(self) -> list[Replica]:
        known = [one for one in self._program.replicas() if one.kind in (TRAINED, READ, STATISTIC)]
        return [one._replace(variable=_start_of(one.variable)) if self._starts else one for one in known]


def starts_from(variable: Any, start: Any) -> None:
    """Note the variable that has the value with which a trained variable's block began."""
    setattr(variable, _START, weakref.ref(start))


def _start_of(variable: Any) -> Any:
    start = getattr(variable, _START, lambda: None)()
    return variable if start is None else start


def digest(program: Program) -> int:
    """Return a number from 1 to 2^48 - 1, which is the same on ranks whose replicas have the same values."""
    replicas = program.replicas()
    lines = agreement.number([one.line for one in replicas])
    return (checksum(list(program.read([one.variable for one in replicas])), lines) & ((1 << DIGEST_BITS) - 1)) or 1
