"""Exchange thread: carries out the exchanges of one collective in order, off TensorFlow's threads.

They are started as their tensors come, carried out here, and finished after the last start: no thread of TensorFlow's
waits for a peer while there is something to compute, even if it has only one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class _Ticket:
    """One exchange that was started: when it is done, and what has gone wrong."""

    def __init__(self, carry_out: Callable[[], None]) -> None:
        self.carry_out: Callable[[], None] | None = carry_out
        self.done = threading.Event()
        self.failure: BaseException | None = None


class Worker:
    """A thread that carries out the exchanges of one collective in the order of their starts, from the first start on.

    The thread knows only what was submitted: a collective that nobody needs any more can be collected.

    Args:
      name: of the collective.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._submitted: queue.SimpleQueue[_Ticket | None] = queue.SimpleQueue()
        self._tickets: dict[int, _Ticket] = {}
        self._thread: threading.Thread | None = None

    def submit(self, number: int, carry_out: Callable[[], None]) -> None:
        """Have one exchange carried out."""
        if self._thread is None:
            name = f"tfdist {self._name}"
            self._thread = threading.Thread(target=_work, args=(self._submitted,), name=name, daemon=True)
            self._thread.start()
        ticket = self._tickets[number] = _Ticket(carry_out)
        self._submitted.put(ticket)

    def wait_for(self, number: int) -> None:
        """Wait until it is done, if it was begun.

        Raises:
          BaseException: what has gone wrong in it.
        """
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            ticket.done.wait()  # its own waits for peers have deadlines
            if ticket.failure is not None:
                raise ticket.failure

    def end(self) -> None:
        """The thread ends when all that was submitted is done."""
        self._submitted.put(None)


def _work(submitted: queue.SimpleQueue[_Ticket | None]) -> None:
    while _do_next(submitted):
        pass


def _do_next(submitted: queue.SimpleQueue[_Ticket | None]) -> bool:
    """A function of its own, whose variables do not keep a collective while there is nothing to do."""
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
