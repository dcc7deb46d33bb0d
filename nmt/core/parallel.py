"""A function of many pieces of work, computed by several processes, with the results in order."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Protocol, TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_WAITING = 3  # pieces for each process that are computed or wait


class Mapping(Protocol):
    """A function like `map`."""

    def __call__(self, function: Callable[[Piece], Result], pieces: Iterable[Piece], /) -> Iterator[Result]:
        """Return the results of the function, in the order of the pieces."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def processes(number: int) -> Iterator[Mapping]:
    """Yield a function like `map` that computes with this number of processes; with 1, with this process only.

    The memory is bounded: a few pieces for each process are read from the iterable at a time.
    """
    if number <= 1:
        yield map
        return
    # "spawn" would import the program again, and "fork" copies threads' locks: prepare has no threads.
    with ProcessPoolExecutor(number, multiprocessing.get_context("fork")) as pool:

        def ordered(function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
            waiting: deque[Future[Result]] = deque()
            iterator = iter(pieces)
            try:
                for piece in itertools.islice(iterator, _WAITING * number):
                    waiting.append(pool.submit(function, piece))
                while waiting:
                    result = waiting.popleft().result()
                    for piece in itertools.islice(iterator, 1):
                        waiting.append(pool.submit(function, piece))
                    yield result
            finally:
                for future in waiting:
                    future.cancel()

        yield ordered


def pieces(items: Iterable[Piece], size: int) -> Iterator[list[Piece]]:
    """Yield lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while part := list(itertools.islice(iterator, size)):
        yield part
