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

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = threading.Event()
        self.failure: BaseException | None = None


class Worker:
    """A thread that carries out the exchanges of one collective in the order of their starts.

    Args:
      name: of the collective.
      carry_out: does one exchange, by its number.
    """

    def __init__(self, name: str, carry_out: Callable[[int], None]) -> None:
        self._name = name
        self._carry_out = carry_out
        self._submitted: queue.SimpleQueue[_Ticket] = queue.SimpleQueue()
        self._tickets: dict[int, _Ticket] = {}
        self._thread: threading.Thread | None = None

    def submit(self, number: int) -> None:
        """Have one exchange carried out."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"tfdist {self._name}", daemon=True)
            self._thread.start()
        ticket = self._tickets[number] = _Ticket(number)
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

    def _run(self) -> None:
        while True:
            ticket = self._submitted.get()
            try:
                self._carry_out(ticket.number)
            except BaseException as error:
                ticket.failure = error
            ticket.done.set()
