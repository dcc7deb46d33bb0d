"""Ranks: what training and translation need of the processes that run them together, and how these agree.

This module knows no communication library: the program hands in an object of protocol `Ranks`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from nmt.core.errors import InputError

Value = TypeVar("Value")


class Ranks(Protocol):
    """The ranks of a run; rank 0 is the one that reads and writes what is shared."""

    @property
    def rank(self) -> int:
        """This process: 0 to size - 1."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def sum(self, value: np.ndarray) -> np.ndarray:
        """The sum over all ranks of arrays of one shape and dtype. Collective: every rank calls."""

    def broadcast(self, value: Value) -> Value:
        """Rank 0's value. Collective: every rank calls; the values of the others are ignored."""

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, in the order of ranks, on every rank. Collective: every rank calls."""

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Marks what this rank does while the others wait in their next collective call. Not collective."""

    def barrier(self) -> None:
        """Returns when all have called it. Collective."""

    def end_block(self) -> None:
        """Gives all ranks the same weights, if each has trained by itself since the last time. Collective."""

    def ask_to_stop(self, wanted: bool = True) -> None:
        """Tells all ranks, with what they exchange next in training, that this one wants it to end; or nothing of the
        kind any more. Not collective: a signal's handler may call it."""

    def asked_to_stop(self) -> bool:
        """Whether any rank had told so by the last step: the same on all. Not collective."""


class OneProcess:
    """The ranks of a run of one process: every call is trivial."""

    rank = 0
    size = 1
    _asked = False

    def sum(self, value: np.ndarray) -> np.ndarray:
        """The value itself."""
        return value

    def broadcast(self, value: Value) -> Value:
        """The value itself."""
        return value

    def gather(self, value: Value) -> list[Value]:
        """The one value."""
        return [value]

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Nothing is marked: nobody waits."""
        return contextlib.nullcontext()

    def barrier(self) -> None:
        """Returns at once."""

    def end_block(self) -> None:
        """The weights are one process's."""

    def ask_to_stop(self, wanted: bool = True) -> None:
        """Tells itself."""
        self._asked = wanted

    def asked_to_stop(self) -> bool:
        """Whether it has."""
        return self._asked


ONE_PROCESS = OneProcess()


class AgreedError(Exception):
    """A user's mistake that every rank knows of; `is_mine` on the one rank that is to tell it."""

    def __init__(self, message: str, is_mine: bool) -> None:
        super().__init__(message)
        self.is_mine = is_mine


@contextlib.contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """Work that each rank does for itself, and that fails on all ranks if a user's mistake shows on any.

    Collective: every rank enters and leaves; no collective call stands inside.

    Raises:
        AgreedError: on every rank, if an `InputError` left the block on any; the lowest such rank is the one
            to tell it.
    """
    message = ""
    try:
        yield
    except InputError as error:
        message = str(error) or "input error"
    mine = np.zeros(ranks.size, np.int64)
    mine[ranks.rank] = bool(message)
    failed = ranks.sum(mine)
    if failed.any():
        teller = int(np.flatnonzero(failed)[0])
        raise AgreedError(message or f"rank {teller} failed", teller == ranks.rank)


def from_root(ranks: Ranks, make: Callable[[], Value]) -> Value:
    """What `make` returns on rank 0, on every rank; the others do not call it.

    Collective: every rank calls.

    Raises:
        AgreedError: on every rank, if `make` raised an `InputError` on rank 0.
    """
    value: Any = None
    with together(ranks):
        value = make() if ranks.rank == 0 else None
    return ranks.broadcast(value)


def check_equal(ranks: Ranks, number: int, message: str) -> None:
    """Checks that a number, such as a checksum of the input, is the same on all ranks.

    Collective: every rank calls.

    Raises:
        AgreedError: on every rank, with `message` and the first rank that differs from rank 0.
    """
    expected = ranks.broadcast(number)
    with together(ranks):
        if number != expected:
            raise InputError(f"{message}: rank {ranks.rank} differs from rank 0")
