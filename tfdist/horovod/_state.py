"""HorovodState: the state between ``init`` and ``shutdown``, with the process sets by number."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.core import exclusions
from tfdist.core.settings import SettingsError
from tfdist.horovod.named.negotiation import Negotiation
from tfdist.start import process
from tfdist.transport.interfaces import Group, World
from tfdist.transport.saves import Position
from tfdist.updates.order import pipeline_of


class UnknownProcessSet(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc,name-defined]
    """A process set that does not exist. It has both types, since Horovod raises one or the other by operation."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


class ProcessSetState(NamedTuple):
    """A process set in use, as seen by this process.

    Attributes:
      number: its number.
      ranks: its members' ranks in the job, ascending.
      negotiation: negotiation of its operations; None if this process is not in the set.
    """

    number: int
    ranks: list[int]
    negotiation: Negotiation | None


class HorovodState:
    """State of ``tfdist.horovod`` in this process.

    Attributes:
      job: the job of this process.
      sets: process sets in use, by number; empty before ``init``.
      reduced_by: names of the ops by which optimizers and tapes reduce; also ``backward_passes_per_step`` if above 1.
    """

    def __init__(self) -> None:
        self.job = process().job
        self.sets: dict[int, ProcessSetState] = {}
        self.reduced_by: set[str] = set()
        self._next = 1

    @property
    def world(self) -> World:
        """All ranks of the job.

        Raises:
          ValueError: ``init`` was not called.
        """
        if not self.sets:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self.job.world

    def begin(self) -> None:
        """Switch the automatic average off: from now on only wrapped optimizers and tapes reduce gradients.

        Raises:
          SettingsError: a setting or a stage of the automatic average is in use.
        """
        settings = self.job.switches.settings
        for name in ("accumulate_steps", "sync", "larc", "loss_scale", "divergence"):
            value = getattr(settings, name)
            if value != settings.fields()[name].default:
                here = f"TFDIST_{name.upper()}={value}"
                raise SettingsError(exclusions.HOROVOD_AND_AUTOMATIC.told("tfdist.horovod", here))
        for stage in pipeline_of(process().steps).added:
            named = f"the stage {type(stage).__name__}"
            raise SettingsError(exclusions.HOROVOD_AND_STAGE.told("tfdist.horovod", named))
        process().install()
        self.job.switches.automatic = False
        runs = process().steps.moments.runs
        if self.run_begins not in runs:  # not yet there from an earlier ``init``
            runs.append(self.run_begins)
        world = self.job.world
        # The negotiation's thread has no position in the program. The rank's position counts the operations that it
        # begins instead, since all ranks begin them in the program's order.
        self._open(0, world, range(world.size), "all ranks", world.waits.position)

    def _open(
        self, number: int, group: Group | None, ranks: Sequence[int], words: str, position: Position | None = None
    ) -> ProcessSetState:
        settings = self.job.switches.settings
        limits = settings.stall_seconds, settings.stall_abort_seconds
        negotiation = None if group is None else Negotiation(group, words, *limits, position)
        self.sets[number] = ProcessSetState(number, list(ranks), negotiation)
        return self.sets[number]

    def run_begins(self) -> None:
        """Note that a graph is about to run: an operation that fails from now on ends this run."""
        for members in list(self.sets.values()):
            if members.negotiation is not None:
                members.negotiation.run_begins()

    def end(self) -> None:
        """Close all process sets: no operation can begin any more."""
        for members in self.sets.values():
            if members.negotiation is not None:
                members.negotiation.close()
        self.sets, self.reduced_by = {}, set()

    def add(self, ranks: Sequence[int]) -> ProcessSetState:
        """Add a process set. Collective: all ranks, which have agreed on the set."""
        number, self._next = self._next, self._next + 1
        group = self.world.group(ranks) if self.world.rank in ranks else None
        return self._open(number, group, ranks, f"process set {number} (ranks {', '.join(map(str, ranks))})")

    def remove(self, number: int) -> None:
        """Remove a process set. Collective: all ranks, which have agreed on the set."""
        members = self.sets.pop(number)
        if members.negotiation is not None:
            members.negotiation.close()

    @functools.cached_property
    def alone(self) -> Group:
        """Group of this rank alone."""
        return self.job.world.group([self.job.world.rank])

    def members(self, number: int | None) -> ProcessSetState:
        """Return the process set of a number.

        Raises:
          ValueError: ``init`` was not called.
          UnknownProcessSet: no process set has this number.
        """
        world = self.world
        members = None if number is None else self.sets.get(number)
        if members is None:
            raise UnknownProcessSet(
                f"process set {number} is unknown on rank {world.rank}: give it to hvd.init(process_sets=...) "
                "or hvd.add_process_set on all ranks, and use it no more after hvd.remove_process_set",
            )
        return members

    def own(self, number: int | None) -> Negotiation:
        """Return the negotiation of a process set of this process.

        Raises:
          ValueError: ``init`` was not called.
          UnknownProcessSet: no process set has this number.
          tf.errors.InvalidArgumentError: this process is not in the set.
        """
        members = self.members(number)
        if members.negotiation is None:
            said = f"rank {self.world.rank} is not in process set {number} (ranks {', '.join(map(str, members.ranks))})"
            raise tf.errors.InvalidArgumentError(None, None, f"{said}: only those ranks may call its operations")
        return members.negotiation


state = HorovodState()
