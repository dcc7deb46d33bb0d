"""Blocking calls: calls of a library that cannot be given up, which another thread watches."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator


class BlockingCall:
    """A blocking call, in the form of a request.

    Args:
      late: function that another thread calls if the call has not returned after ``seconds``; it continues to wait.
      seconds: time until ``late`` is called.
    """

    def __init__(self, late: Callable[[BlockingCall], None], seconds: float) -> None:
        self._late, self._seconds = late, seconds
        self.returned = threading.Event()
        _submitted.put(self)
        _start()

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        return self.returned.is_set()

    def watch(self) -> None:
        """Wait for the call, in the other thread."""
        if not self.returned.wait(self._seconds):
            self._late(self)


_submitted: queue.SimpleQueue[BlockingCall] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def _start() -> None:
    """Start one thread for all calls, at the first: at the end of a program Python does not start threads any more."""
    global _thread
    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_work, name="tfdist deadline", daemon=True)
            _thread.start()


def _work() -> None:
    while True:
        _submitted.get().watch()


@contextlib.contextmanager
def watched(late: Callable[[BlockingCall], None], seconds: float) -> Iterator[None]:
    """Watch the block as a ``BlockingCall``."""
    call = BlockingCall(late, seconds)
    try:
        yield
    finally:
        call.returned.set()
