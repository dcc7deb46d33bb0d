"""Pending operations: those that this rank has begun, and their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from tfdist.horovod.named.requests import Request


class RunFailed(Exception):
    """A graph begins an operation in a run in which another operation has failed."""


class DuplicateName(Exception):
    """An operation of the same name is under way."""


class PendingOperation:
    """An operation that this rank has begun.

    Attributes:
      request: the request of the operation.
      arrays: arrays of the operation, in its own memory; None after it has ended.
    """

    def __init__(self, request: Request, arrays: Sequence[np.ndarray]) -> None:
        self.request = request
        self.arrays: Sequence[np.ndarray] | None = arrays
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._then: list[Callable[[], None]] = []
        self._results: list[np.ndarray] = []
        self._failure: BaseException | None = None

    def complete(self, results: list[np.ndarray], failure: BaseException | None = None) -> None:
        """End the operation with its results or a failure, and call the functions of ``then``."""
        self.arrays = None
        self._results, self._failure = results, failure
        with self._lock:
            self._done.set()
            then, self._then = self._then, []
        for action in then:
            action()

    def then(self, action: Callable[[], None]) -> None:
        """Call a function when the operation has ended, in any thread; now if it has ended already."""
        with self._lock:
            if not self._done.is_set():
                self._then.append(action)
                return
        action()

    def results(self) -> list[np.ndarray]:
        """Wait until the operation has ended, and return its results.

        Raises:
          Exception: the operation has failed; with ``Mismatch`` or ``BadArgument`` on all ranks.
        """
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        return self._results
