"""Collective: exchanges on a channel of their own, on which all ranks agree before the first one."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from tfdist.core.log import announce, trace
from tfdist.engine._exchange_thread import Worker
from tfdist.engine.engines import Choice, Context, Now
from tfdist.engine.exchange import Exchange
from tfdist.engine.wait_table import WaitTable
from tfdist.engine.word import Heard, Says, Word
from tfdist.record.flight_recorder import FlightRecorder
from tfdist.transport.errors import DisagreementError, PeerError
from tfdist.transport.interfaces import Channel, Group

_SETS = -1  # in place of a word, before a step
_PARTS = 1 << 12  # exchanges of a collective, and sizes of those whose sizes change, at most
_OPENED: dict[tuple[int, ...], int] = {}  # number of collectives, of all groups of the same ranks

_LOOKED_AT = (
    "rank {} evaluates {} without applying it, while rank {} applies it in a training step. All ranks must run the "
    "same: fetch it together with the training operation, or evaluate it on all ranks"
)


@dataclasses.dataclass(slots=True)
class StopRequest:
    """A request to end training, which ranks send with exchanges that they make anyway.

    Attributes:
      mine: True if this rank wants to end.
      heard: True if some rank wanted to end at the last exchange; the same on all ranks after a step.
    """

    mine: bool = False
    heard: bool = False


class Collective:
    """One communication operation: its exchanges, the plan that all ranks must agree on, and its channel.

    Args:
      name: name for messages; unique in its graph.
      exchanges: the exchanges, in their order.
      group: the ranks that take part.
      recorder: flight recorder.
      everyone: True if the group is all ranks of the job.
      averages: True for gradients, whose values follow from the variables.
      blocks: True for what blocks of local steps have changed.

    Attributes:
      plan: the lines of the exchanges, one for each tensor; compared between the ranks.
      channel: the channel; None until all ranks have the same plan.
      says: what this rank says with the next step.
      heard: what all ranks have said with the last step.
      present: the ranks whose tensors count in this step.
      stop: request to end training, sent with each step.
      ends_epoch: request to end an epoch of ``fit``, sent with each step.
      check: object that compares the ranks by their notes.
      checks: ``check`` and those of other trainings with the same exchanges. They are kept here, as they may refer to
        this object.
      number: number among the collectives that groups of these ranks have opened; the same on all ranks.
      keys: key of an exchange whose size changes, by exchange and size; the same on all ranks.
      taken: number of the last step whose exchanges are done, and with ``deferred``, whose results were taken.
      traced: True if each exchange is logged.
      wait_table: table of waits to which this rank's times are added; None: there is none.
      span: records spans of its steps for the timeline.
      worker: thread that carries out the exchanges, if there are several.
      deferred: True if a later step takes the results. What the ranks say with an exchange has its effect there. The
        thread that carries out the exchange is not in the same step on all ranks.
    """

    def __init__(
        self,
        name: str,
        exchanges: Sequence[Exchange],
        group: Group,
        recorder: FlightRecorder,
        everyone: bool = True,
        averages: bool = False,
        blocks: bool = False,
    ) -> None:
        self.name = name
        self.exchanges = list(exchanges)
        self.plan = [line for exchange in exchanges for line in exchange.lines]
        self.group = group
        self.everyone = everyone
        self.averages = averages
        self.blocks = blocks
        self.channel: Channel | None = None
        self.says, self.heard = Says(), Heard()
        self.stop = StopRequest()
        self.ends_epoch = StopRequest()
        self.check: Any = None
        self.checks: dict[Hashable, Any] = {}
        self.number = 0
        self.keys: dict[tuple[int, int], int] = {}
        self._now = now = Now(name)
        self.span = recorder.spans(name, lambda: now.step)
        self.taken = 0
        self.traced = False
        self.wait_table: WaitTable | None = None
        self.worker = Worker(name)
        self.deferred = False
        self._take_effect: Callable[[], None] = _nothing  # of what the ranks have said at the last arrival
        self._everybody = list(range(group.size))
        self._place = "", 0  # of the last step's first exchange: what, and its number of bytes
        self._failure: BaseException | None = None
        self._broken = threading.Event()
        self._contexts: list[Context] = []

    @property
    def shares_memory(self) -> bool:
        """Whether the choice of the engine has an effect on this collective."""
        return any(exchange.shares_memory for exchange in self.exchanges)

    def open(self, choice: Choice) -> None:
        """Open the channel and the engines of the exchanges. Collective: the group's ranks."""
        self.channel = self.group.channel(self.name, choice.shares_memory and self.shares_memory)
        ranks = tuple(self.group.ranks)
        self.number = _OPENED[ranks] = _OPENED.get(ranks, 0) + 1
        # The channel is closed when the graph or model of this collective is collected.
        weakref.finalize(self, _close, self.channel, self.worker, self._broken).atexit = False
        self._contexts = [
            Context(
                self._now,
                self.channel,
                choice,
                self.group.ranks,
                self.span,
                functools.partial(self._arrive, number),
                functools.partial(self._key, number),
            )
            for number in range(len(self.exchanges))
        ]
        for exchange, context in zip(self.exchanges, self._contexts, strict=True):
            exchange.open(context)

    def _arrive(self, number: int, what: str, size_bytes: int = 0) -> None:
        """Wait for all ranks at one exchange."""
        assert self.channel is not None
        if number == 0:
            self._now.step += 1
        own = self.says.word(self.stop.mine, self.ends_epoch.mine, note=number == 0).packed()
        self.channel.background = self.deferred
        place, notes = f"{self.name}, step {self.step}, {what}", self._times(self.step, number)
        words = self.channel.arrive(place, own, size_bytes, notes)
        while number == 0 and _SETS in words:  # this rank has not set variables, and comes first to the exchange
            words = self.channel.arrive(place, own, size_bytes, notes)
        if notes and self.wait_table is not None:
            announce(self.wait_table.end(self.channel.notes, self.name, self.described(), self.step))
        if number == 0:
            self._place = what, size_bytes
            self._hear(own, words)

    @property
    def step(self) -> int:
        """Number of the step, from 1."""
        return self._now.step

    @property
    def present(self) -> list[int]:
        """Ranks of the group whose tensors count in this step."""
        return self._now.present

    def _key(self, number: int, size: int | None) -> int:
        of_sizes, first = self.keys, len(self.exchanges)
        part = number if size is None else of_sizes.setdefault((number, size), first + len(of_sizes))
        if part >= _PARTS:
            raise RuntimeError(
                f"{self.name} has more than {_PARTS} exchanges and sizes of slices: set a larger TFDIST_BUCKET_MB, or "
                "leave TFDIST_ENGINE out"
            )
        return self.number * _PARTS + part

    def meet_before(self) -> bool:
        """Tell all ranks, before a step, that this rank's script has set trained variables.

        Collective: all ranks, each here or in the step's first exchange, which it then repeats.

        Returns:
          Whether all ranks are here.
        """
        assert self.channel is not None
        what, size_bytes = self._place
        place = f"{self.name}, step {self.step + 1}, {what}"
        said = self.channel.arrive(place, _SETS, size_bytes, self._times(self.step + 1, 0))
        return all(one == _SETS for one in said)

    def _times(self, step: int, number: int) -> Sequence[int]:
        """Return the times that this rank brings to an exchange of a step; none if no table is due there."""
        table = self.wait_table
        return table.times() if table is not None and table.due(step, number) else ()

    def _hear(self, own: int, words: Sequence[int]) -> None:
        different = {own} if words.count(own) == len(words) else set(words)  # there may be thousands of ranks
        said = {number: Word.unpacked(number) for number in different}
        present = [word for word in said.values() if not word.absent]
        self._now.present = (
            self._everybody if len(present) == len(said) else [r for r, w in enumerate(words) if not said[w].absent]
        )
        if len({word.evaluates for word in present}) > 1:
            evaluating = next(r for r in self._now.present if said[words[r]].evaluates)
            applying = next(r for r in self._now.present if not said[words[r]].evaluates)
            ranks = self.group.ranks
            raise DisagreementError(_LOOKED_AT.format(ranks[evaluating], self.name, ranks[applying]))
        set_apart = len({(word.times_set, word.overwritten) for word in present}) > 1
        # The rest of a call's steps, too: its caller shares the values after it, and resets ``heard.root_only``.
        before = self.heard.root_only and not self.deferred
        root_only = before or set_apart or any(word.overwritten for word in said.values())
        notes: list[int] | None = None
        if self.says.note and not root_only:
            found = [said[words[rank]].note for rank in self._now.present]
            notes = found if all(found) else []

        def take_effect() -> None:
            self.taken, self._take_effect = self.step, _nothing
            self.heard.root_only, self.heard.set_apart = root_only, set_apart
            self.stop.heard |= any(word.stops for word in said.values())
            self.ends_epoch.heard |= any(word.ends_epoch for word in said.values())
            self.heard.asked |= any(word.asks for word in said.values())
            if notes is not None:
                self.heard.notes = notes

        self._take_effect = take_effect
        if not self.deferred:
            take_effect()
        self.says.said()
        if root_only:
            self._now.present = self._now.present[:1]

    def communicate(self, number: int) -> None:
        """Carry out one exchange. After a failure every further call raises the same error."""
        if self._failure:
            raise self._failure
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # infinities are values, as in TensorFlow
                self.exchanges[number].communicate(self._contexts[number])
            assert self.channel is not None
            self._measured(number, *self.channel.done())
        except BaseException as error:
            self._failure = error
            self._broken.set()
            if isinstance(error, PeerError) and self.channel is not None:
                self.channel.give_up(error)
            raise

    def results(self) -> list[list[np.ndarray]]:
        """Wait until the exchanges that the worker has started are done, and return the results of each."""
        assert self.channel is not None
        self.channel.count()  # this thread waits for all ranks here, and not where the worker does
        for number in range(len(self.exchanges)):
            self.worker.wait_for(number)
        self._take_effect()  # in the same step on all ranks
        return [exchange.results() for exchange in self.exchanges]

    def _measured(self, number: int, seconds: float, waited: float) -> None:
        """Log the time of an exchange, and add it to the table of waits, if wanted."""
        if self.traced:
            trace(
                f"rank {self.group.ranks[self.group.rank]}: {self.name}, step {self.step}, "
                f"{self.exchanges[number].what}: {1e3 * seconds:.2f} ms, {1e3 * waited:.2f} of it waiting"
            )
        if self.wait_table is not None:
            self.wait_table.add(seconds, waited)

    def described(self) -> str:
        """Return the number of exchanges, and the engines, as text."""
        engines = dict.fromkeys(str(getattr(exchange, "engine", "rows")) for exchange in self.exchanges)
        count = len(self.exchanges)
        return f"{count} exchange{'s' * (count > 1)} a step ({', '.join(engines)})"


def _nothing() -> None:
    """Do nothing: the ranks have said nothing new."""


def _close(channel: Channel, worker: Worker, broken: threading.Event) -> None:
    worker.end()
    if not broken.is_set():  # after a failure another rank may still use the channel
        channel.give_back()
