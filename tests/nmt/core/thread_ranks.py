"""Ranks that are threads of one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from nmt.core.ranks import CollectiveError, Ranks


class Thread:
    """A rank in a thread, which exchanges values at a barrier."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, slots: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._slots = rank, size, barrier, slots

    def gather(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(20)
        values = list(self._slots)
        self._barrier.wait(20)
        return values

    def sum(self, value: np.ndarray) -> np.ndarray:
        return np.sum(self.gather(value), axis=0)

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]

    def alone(self, reason: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def end_block(self) -> None:
        """Do nothing: these ranks train together in each step."""

    def untouched(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def multiply_in(self, precision: str) -> None:
        """Do nothing."""

    def ask_to_stop(self, wanted: bool = True) -> None:
        """Do nothing: these ranks do not train."""

    def asked_to_stop(self) -> bool:
        return False

    def barrier(self) -> None:
        self.gather(None)


def outcomes(size: int, body: Callable[[Ranks], Any]) -> list[Any]:
    """Return the result or the ``CollectiveError`` of the body, by rank."""
    barrier, slots = threading.Barrier(size), [None] * size

    def run(rank: int) -> Any:
        try:
            return body(Thread(rank, size, barrier, slots))
        except CollectiveError as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
