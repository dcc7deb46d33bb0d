"""Exchange thread: carries out the exchanges of one collective in order, outside TensorFlow's threads.

An exchange starts when its tensors are ready, and is waited for after the last start. So none of TensorFlow's threads
waits for a peer while there is something to compute, even if TensorFlow has only one thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class _Ticket:
    """An exchange that was started: an event for its end, and its exception if it fails."""

    def __init__(self, carry_out: Callable[[], None]) -> None:
        self.carry_out: Callable[[], None] | None = carry_out
        self.done = threading.Event()
        self.failure: BaseException | None = None


class Worker:
    """A thread that carries out the exchanges of one collective in the order of their starts; the first starts it.

    The thread refers only to submitted exchanges, so that an unused collective can be garbage-collected.

    Args:
      name: name of the collective.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._submitted: queue.SimpleQueue[_Ticket | None] = queue.SimpleQueue()
        self._tickets: dict[int, _Ticket] = {}
        self._thread: threading.Thread | None = None

    def submit(self, number: int, carry_out: Callable[[], None]) -> None:
        """Queue one exchange; the thread calls ``carry_out``."""
        if self._thread is None:
            name = f"tfdist {self._name}"
            self._thread = threading.Thread(target=_work, args=(self._submitted,), name=name, daemon=True)
            self._thread.start()
        ticket = self._tickets[number] = _Ticket(carry_out)
        self._submitted.put(ticket)

    def wait_for(self, number: int) -> None:
        """Wait until an exchange is done, if it was submitted.

        Raises:
          BaseException: the exchange failed with it.
        """
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            ticket.done.wait()  # no deadline: the exchange's own waits for peers have one
            if ticket.failure is not None:
                raise ticket.failure

    def end(self) -> None:
        """End the thread after all submitted exchanges are done."""
        self._submitted.put(None)


def _work(submitted: queue.SimpleQueue[_Ticket | None]) -> None:
    while _do_next(submitted):
        pass


def _do_next(submitted: queue.SimpleQueue[_Ticket | None]) -> bool:
    """Carry out one exchange; False at the end. A separate function: its variables keep no collective between calls."""
    ticket = submitted.get()
    if ticket is None:
        return False
    try:
        assert ticket.carry_out is not None
        ticket.carry_out()
    except BaseException as error:
        ticket.failure = error
    ticket.carry_out = None
    ticket.done.set()
    return True
