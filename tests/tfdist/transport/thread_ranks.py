"""Ranks as threads of one process, for tests of collective code without MPI."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tfdist.transport.one_process import OneProcess

Value = TypeVar("Value")
_OPS: dict[str, Callable[[list[np.ndarray]], Any]] = {"min": np.minimum.reduce, "max": np.maximum.reduce, "sum": sum}


class ThreadChannel(OneProcess):
    """Some operations of ``interfaces.Channel``, between threads."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, len(board)
        self._board, self._barrier = board, barrier

    def _everybody(self, value: Any) -> list[Any]:
        self._board[self.rank] = value
        self._barrier.wait()
        found = list(self._board)
        self._barrier.wait()
        return found

    def arrive(self, place: str, flags: int = 0, size_bytes: int = 0, notes: Any = ()) -> list[int]:
        return [flag for _, flag in self._everybody((place, flags))]

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        return self._everybody(value)

    def broadcast_object(self, value: Any, place: str, root: int = 0) -> Any:
        return self._everybody(value)[root]

    def all_reduce(self, array: np.ndarray, op: Any = "sum", divisor: int = 1) -> None:
        array[...] = _OPS[op](self._everybody(array.copy())) // divisor


def on_ranks(size: int, function: Callable[[ThreadChannel], Value]) -> list[Value | Exception]:
    """Return the result or exception of each rank; a rank that waits for a missing rank fails after 10 s."""
    board: list[Any] = [None] * size
    barrier = threading.Barrier(size, timeout=10)

    def one(rank: int) -> Value | Exception:
        try:
            return function(ThreadChannel(rank, board, barrier))
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))
