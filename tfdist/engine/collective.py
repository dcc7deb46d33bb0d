"""Communication operations: what all ranks agree on, how their exchanges meet, and the thread that carries them out.

Several exchanges are started as their tensors come, carried out by a thread of the collective, and finished after the
last start: no thread of TensorFlow's waits for a peer while there is something to compute, even if it has only one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tfdist.graph.job import Job
from tfdist.transport.interfaces import Channel, Group

_OVERWRITTEN = 1
_ABSENT = 2


class Exchange(Protocol):
    """A part of a collective: one message, or a few.

    Attributes:
      what: in words.
      shared_tensors: how many it can exchange in ways that only the ranks of a node have; 0 if it cannot.
    """

    what: str
    shared_tensors: int

    def open(self, turn: Turn) -> None:
        """The ranks have agreed, and there is a channel. Collective."""

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the arguments: TensorFlow's memory, which may be read as long as they are held, and never written."""

    def load_nothing(self) -> None:
        """This rank has no arguments any more."""

    def communicate(self, turn: Turn) -> None:
        """Collective."""

    def results(self) -> list[np.ndarray]:
        """What TensorFlow gets."""


class Turn:
    """One exchange's place in its collective: how it meets the other ranks."""

    def __init__(self, collective: Collective, number: int) -> None:
        self._collective = collective
        self._number = number
        self.span = collective.job.recorder.spans(collective)

    @property
    def channel(self) -> Channel:
        """The collective's."""
        channel = self._collective.channel
        assert channel is not None
        return channel

    @property
    def job(self) -> Job:
        """The ranks and settings."""
        return self._collective.job

    @property
    def present(self) -> list[int]:
        """The ranks of the group whose tensors count in this step."""
        return self._collective.present

    @property
    def contributes(self) -> bool:
        """Whether this rank's do."""
        return self.channel.rank in self.present

    def place(self, what: str) -> str:
        """Where this is, in words."""
        return f"{self._collective.name}, step {self._collective.step}, {what}"

    def arrive(self, what: str, size_bytes: int = 0) -> None:
        """Wait for all ranks."""
        self._collective.arrive(self._number, what, size_bytes)


class Collective:
    """One communication operation of a graph: what all ranks must agree on, and its channel.

    Args:
      name: in words, for messages; unique in its graph.
      plan: a line for each tensor (name, dtype, shape), compared between the ranks.
      job: the ranks and settings.
      group: of the ranks that take part; None for all.
      averages: it is of gradients, whose values follow from the variables.

    Attributes:
      group: likewise.
      channel: opened when all ranks have been seen to have the same plan.
      overwritten: this rank's values may differ from the other ranks'; told to them with the next step.
      root_only: some rank said so, and this step's result is the first present rank's contribution alone.
      absent: this rank has no data any more.
      present: the ranks whose tensors count in this step.
      exchanges: in their order.
      step: counts from 1.
      worker: carries exchanges out, if there are several.
    """

    def __init__(
        self, name: str, plan: Sequence[str], job: Job, group: Group | None = None, averages: bool = False
    ) -> None:
        self.name = name
        self.plan = list(plan)
        self.job = job
        self.channel: Channel | None = None
        self.overwritten = False
        self.root_only = False
        self.absent = False
        self.present: list[int] = []
        self.exchanges: list[Exchange] = []
        self.step = 0
        self.group = group
        self.averages = averages
        self.worker = Worker(self)
        self._failure: BaseException | None = None

    @property
    def shared_tensors(self) -> int:
        """How many tensors one exchange has at most for the node's own ways."""
        return max((e.shared_tensors for e in self.exchanges), default=0)

    def open(self) -> None:
        """Give it its channel. Collective: the group's ranks."""
        tuning = self.job.tuning
        sharing = tuning.sharing(self.shared_tensors) if tuning and self.shared_tensors else None
        self.channel = (self.group or self.job.world).channel(self.name, sharing)
        for number, exchange in enumerate(self.exchanges):
            exchange.open(Turn(self, number))

    def arrive(self, number: int, what: str, size_bytes: int = 0) -> None:
        """Wait for all ranks at one exchange."""
        assert self.channel is not None
        if number == 0:
            self.step += 1
        own = (_OVERWRITTEN if self.overwritten else 0) | (_ABSENT if self.absent else 0)
        flags = self.channel.arrive(f"{self.name}, step {self.step}, {what}", own, size_bytes)
        if number == 0:
            self.present = [r for r, flag in enumerate(flags) if not flag & _ABSENT]
            self.root_only = any(flag & _OVERWRITTEN for flag in flags)
            self.overwritten = False
            if self.root_only:
                self.present = self.present[:1]

    def communicate(self, number: int) -> None:
        """Carry one exchange out; after a failure there is no further."""
        if self._failure:
            raise self._failure
        try:
            self.exchanges[number].communicate(Turn(self, number))
        except BaseException as error:
            self._failure = error
            raise


class _Ticket:
    """One exchange that was started: when it is done, and what has gone wrong."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = threading.Event()
        self.failure: BaseException | None = None


class Worker:
    """A thread that carries out the exchanges of one collective in the order of their starts."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._submitted: queue.SimpleQueue[_Ticket] = queue.SimpleQueue()
        self._tickets: dict[int, _Ticket] = {}
        self._thread: threading.Thread | None = None

    def submit(self, number: int) -> None:
        """Have one exchange carried out."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"tfdist {self._collective.name}", daemon=True)
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
                self._collective.communicate(ticket.number)
            except BaseException as error:
                ticket.failure = error
            ticket.done.set()
