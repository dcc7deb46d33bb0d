"""HorovodState: the state between ``init`` and ``shutdown``, with the process sets by number."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import tensorflow as tf

from tfdist.core import exclusions
from tfdist.core.settings import SettingsError
from tfdist.horovod.named.negotiation import Negotiation
from tfdist.start import process
from tfdist.transport.interfaces import Group
from tfdist.updates.order import pipeline_of

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class UnknownProcessSet(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc,name-defined]
    """A process set that does not exist. It has both types, since Horovod raises one or the other by operation."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


class ProcessSetState:
    """A process set in use, as seen by this process.

    Attributes:
      ranks: its members' ranks in the job, ascending.
      group: communication group of its ranks; None if this process is not in the set.
      negotiation: negotiation of its operations; None if this process is not in the set.
      failures: number of failed graph operations when the last run of a graph began.
    """

    def __init__(self, number: int, ranks: Sequence[int], group: Group | None) -> None:
        self.number = number
        self.ranks = list(ranks)
        self.group = group
        self.failures = 0
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()
        job = process().job
        settings = job.switches.settings
        words = "all ranks" if number == 0 else f"process set {number} (ranks {', '.join(map(str, ranks))})"
        # The negotiation's thread has no position in the program. The rank's position counts the operations that it
        # begins instead, since all ranks begin them in the program's order.
        self._position = job.world.waits.position if number == 0 else None
        count = self._position.count if self._position is not None else lambda: None
        limits = settings.stall_seconds, settings.stall_abort_seconds
        self.negotiation = None if group is None else Negotiation(group, words, *limits, count)

    def run_begins(self) -> None:
        """Note the failures so far: see ``HorovodState.run_begins``."""
        if self.negotiation is not None and self.failures != self.negotiation.failures:
            self.failures = self.negotiation.failures
            if self._position is not None:  # after a failure the ranks have begun different numbers of operations
                self._position.count_anew()

    def next_name(self, kind: str) -> str:
        """Return a name for an eager operation without one: the n-th operation of each rank has the same name."""
        with self._lock:
            self._calls[kind] = number = self._calls.get(kind, 0) + 1
        return f"{kind}.noname.{number}"

    def count_anew(self) -> None:
        """Restart the counts of operations, when all ranks are at one place after different numbers of operations."""
        with self._lock:
            self._calls = {}
        if self._position is not None:
            self._position.count_anew()


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
        self._alone: Group | None = None
        self._next = 1

    @property
    def begun(self) -> bool:
        """Whether ``init`` was called, without ``shutdown`` since."""
        return bool(self.sets)

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
        self.sets[0] = ProcessSetState(0, range(self.job.world.size), self.job.world)

    def run_begins(self) -> None:
        """Note that a graph is about to run: an operation that fails from now on ends this run."""
        for members in list(self.sets.values()):
            members.run_begins()

    def end(self) -> None:
        """Close all process sets: no operation can begin any more."""
        for members in self.sets.values():
            if members.negotiation is not None:
                members.negotiation.close()
        self.sets, self.reduced_by = {}, set()

    def add(self, ranks: Sequence[int]) -> ProcessSetState:
        """Add a process set. Collective: all ranks, which have agreed on the set."""
        world = self.job.world
        number = self._next
        self._next += 1
        members = ProcessSetState(number, ranks, world.group(ranks) if world.rank in ranks else None)
        self.sets[number] = members
        return members

    def remove(self, number: int) -> None:
        """Remove a process set. Collective: all ranks, which have agreed on the set."""
        members = self.sets.pop(number)
        if members.negotiation is not None:
            members.negotiation.close()

    def alone(self) -> Group:
        """Return a group of this rank alone."""
        if self._alone is None:
            self._alone = self.job.world.group([self.job.world.rank])
        return self._alone

    def members(self, number: int | None) -> ProcessSetState:
        """Return the process set of a number.

        Raises:
          ValueError: ``init`` was not called.
          UnknownProcessSet: no process set has this number.
        """
        if not self.sets:
            raise ValueError(NOT_INITIALIZED)
        members = None if number is None else self.sets.get(number)
        if members is None:
            raise UnknownProcessSet(
                f"process set {number} is unknown on rank {self.job.world.rank}: give it to hvd.init(process_sets=...) "
                "or hvd.add_process_set on all ranks, and use it no more after hvd.remove_process_set",
            )
        return members

    def own(self, number: int | None) -> tuple[ProcessSetState, Negotiation]:
        """Return a process set of this process, and its negotiation.

        Raises:
          ValueError: ``init`` was not called.
          UnknownProcessSet: no process set has this number.
          tf.errors.InvalidArgumentError: this process is not in the set.
        """
        members = self.members(number)
        if members.negotiation is None:
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                f"rank {self.job.world.rank} is not in process set {number} (ranks "
                f"{', '.join(map(str, members.ranks))}): only those ranks may call its operations",
            )
        return members, members.negotiation


state = HorovodState()
