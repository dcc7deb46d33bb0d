"""Blocking call: one that has no request of MPI's, as something to wait for; and the thread that waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class BlockingCall:
    """A blocking call as a request.

    Args:
      late: is called by another thread when it has not returned after ``seconds``, and waits on.
      seconds: until then.
    """

    def __init__(self, late: Callable[[BlockingCall], None], seconds: float) -> None:
        self._late, self._seconds = late, seconds
        self.returned = threading.Event()
        _submitted.put(self)
        _start()

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        return self.returned.is_set()

    def watch(self) -> None:
        """Wait for it; by the other thread."""
        if not self.returned.wait(self._seconds):
            self._late(self)


_submitted: queue.SimpleQueue[BlockingCall] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def _start() -> None:
    """One thread for all of them, begun with the first: at the end of a program Python begins none any more."""
    global _thread
    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_work, name="tfdist deadline", daemon=True)
            _thread.start()


def _work() -> None:
    while True:
        _submitted.get().watch()
