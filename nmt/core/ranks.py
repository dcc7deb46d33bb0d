"""Ranks: the communication between the processes of a training or translation, and errors on all of them.

This module does not depend on a communication library: the program passes an object of protocol `Ranks`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from nmt.core.errors import InputError

Value = TypeVar("Value")


class Ranks(Protocol):
    """The ranks of a run; rank 0 reads and writes the shared files."""

    @property
    def rank(self) -> int:
        """Rank of this process, 0 to size - 1."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def sum(self, value: np.ndarray) -> np.ndarray:
        """Return the sum over all ranks of arrays of one shape and dtype. Collective: every rank calls."""

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value. Collective: every rank calls; the values of the other ranks are ignored."""

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in the order of ranks, on every rank. Collective: every rank calls."""

    def untouched(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which the library does not change graphs. Not collective."""

    def multiply_in(self, precision: str) -> None:
        """Set the precision of matrix products, for graphs that are built from now on. Collective: every rank calls."""

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Mark a block of work, during which the other ranks wait in their next collective call. Not collective."""

    def barrier(self) -> None:
        """Wait until all ranks have called it. Collective."""

    def end_block(self) -> None:
        """End a block of local SGD: give all ranks the same weights; no effect without local SGD. Collective."""

    def ask_to_stop(self, wanted: bool = True) -> None:
        """Request that training ends, or withdraw the request; it travels with the next exchange of training.

        Not collective: a signal handler may call it.
        """

    def asked_to_stop(self) -> bool:
        """Return whether any rank had requested a stop by the last step; the same on all ranks. Not collective."""


class OneProcess:
    """The ranks of a run of one process: every call is trivial."""

    rank = 0
    size = 1
    _asked = False

    def sum(self, value: np.ndarray) -> np.ndarray:
        """Return the value."""
        return value

    def broadcast(self, value: Value) -> Value:
        """Return the value."""
        return value

    def gather(self, value: Value) -> list[Value]:
        """Return a list of the value."""
        return [value]

    def untouched(self) -> contextlib.AbstractContextManager[Any]:
        """Do nothing."""
        return contextlib.nullcontext()

    def multiply_in(self, precision: str) -> None:
        """Do nothing."""

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Do nothing: no other rank waits."""
        return contextlib.nullcontext()

    def barrier(self) -> None:
        """Return at once."""

    def end_block(self) -> None:
        """Do nothing: there are no other weights."""

    def ask_to_stop(self, wanted: bool = True) -> None:
        """Request that training ends, or withdraw the request."""
        self._asked = wanted

    def asked_to_stop(self) -> bool:
        """Return whether a stop is requested."""
        return self._asked


ONE_PROCESS = OneProcess()


class CollectiveError(Exception):
    """A user's mistake, raised on every rank; `is_mine` is True on the one rank that prints the message."""

    def __init__(self, message: str, is_mine: bool) -> None:
        super().__init__(message)
        self.is_mine = is_mine


@contextlib.contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """Run a block of local work on each rank; an `InputError` on any rank makes the block fail on all ranks.

    Collective: every rank enters and leaves; the block must not contain a collective call.

    Raises:
        CollectiveError: on every rank, if the block raised an `InputError` on any rank. The lowest such rank prints its
            message.
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
        raise CollectiveError(message or f"rank {teller} failed", teller == ranks.rank)


def call_on_root(ranks: Ranks, make: Callable[[], Value]) -> Value:
    """Call `make` on rank 0 only, and return its result on every rank.

    Collective: every rank calls.

    Raises:
        CollectiveError: on every rank, if `make` raised an `InputError` on rank 0.
    """
    value: Any = None
    with together(ranks):
        value = make() if ranks.rank == 0 else None
    return ranks.broadcast(value)


def check_equal(ranks: Ranks, number: int, message: str) -> None:
    """Check that a number, such as a checksum of the input, is the same on all ranks.

    Collective: every rank calls.

    Raises:
        CollectiveError: on every rank, with `message` and the lowest rank that differs from rank 0.
    """
    expected = ranks.broadcast(number)
    with together(ranks):
        if number != expected:
            raise InputError(f"{message}: rank {ranks.rank} differs from rank 0")
