"""A function of many pieces of work, computed by several processes, with the results in order."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from nmt.core.errors import InputError

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_ENDS = signal.SIGINT, signal.SIGTERM


class Mapping(Protocol):
    """A function like `map`."""

    def __call__(self, function: Callable[[Piece], Result], pieces: Iterable[Piece], /) -> Iterator[Result]:
        """Return the results of the function, in the order of the pieces."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def processes(number: int, apart: bool = False) -> Iterator[Mapping]:
    """Yield a function like `map` that computes with this number of processes.

    Each process has one piece at a time, so the memory is bounded. At the end of the block, also by Ctrl-C, they are
    killed. They end by themselves if this process is killed. One call's results must be taken before the next call.

    Args:
      number: number of processes.
      apart: whether one process is another than this one: Ctrl-C then interrupts libraries, too.
    """
    if number <= 1 and not apart:
        yield map
        return
    context = multiprocessing.get_context("fork")  # "spawn" would import the program again
    with contextlib.ExitStack() as stack:
        workers: list[Connection] = []
        # A new process must not get a signal before it has its own handlers: this one's would run in it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        try:
            for _ in range(number):
                here, there = context.Pipe()
                workers.append(stack.enter_context(here))
                process = context.Process(target=_work, args=(there, tuple(workers), before), daemon=True)
                process.start()
                there.close()
                stack.callback(process.join)
                stack.callback(process.kill)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        def ordered(function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
            iterator, free, busy = iter(pieces), deque(workers), deque[Connection]()
            try:
                while True:
                    for piece in itertools.islice(iterator, len(free)):
                        busy.append(free.popleft())
                        busy[-1].send((function, piece))
                    if not busy:
                        return
                    free.append(busy.popleft())
                    result, error, trace = free[-1].recv()
                    if error:
                        raise error from RuntimeError(trace)
                    yield result
            except (EOFError, ConnectionError):
                raise InputError(
                    "one of the processes was killed, perhaps because memory was short: give a smaller --processes, or "
                    "less text for --spm"
                ) from None

        yield ordered


def _work(work: Connection, others: Sequence[Connection], signals: Iterable[int]) -> None:
    """Compute in a new process until the first process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    for other in others:  # else this process would keep them open for its neighbours, and for itself
        other.close()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, piece = work.recv()
            answer: tuple[Any, Exception | None, str]
            try:
                answer = function(piece), None, ""
            except Exception as error:
                answer = None, error, traceback.format_exc()
            work.send(answer)


def pieces(items: Iterable[Piece], size: int) -> Iterator[list[Piece]]:
    """Yield lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while part := list(itertools.islice(iterator, size)):
        yield part
