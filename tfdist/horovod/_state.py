"""HorovodState: what ``init`` begins and ``shutdown`` ends; the process sets, by their numbers."""

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
    """A process set that is none: Horovod raises one or the other, by the operation."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


class Members:
    """A process set that is in use, as this process takes part in it.

    Attributes:
      ranks: in the job, ascending.
      group: of them; None if this process is none of them.
      negotiation: likewise.
      failures: of operations of graphs, when the last run of one began.
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
        # The thread that meets the others has no place in the program; what begins here is begun by all, in its order.
        self._position = job.world.position if number == 0 else None
        count = self._position.count if self._position is not None else lambda: None
        limits = settings.stall_seconds, settings.stall_abort_seconds
        self.negotiation = None if group is None else Negotiation(group, words, *limits, count)

    def run_begins(self) -> None:
        """See ``HorovodState``."""
        if self.negotiation is not None:
            self.failures = self.negotiation.failures

    def root(self, rank: int) -> tuple[int, str]:
        """A rank's number among these, and what is wrong with it; empty if nothing is."""
        if rank in self.ranks:
            return self.ranks.index(rank), ""
        return 0, f"root_rank={rank} is none of {', '.join(map(str, self.ranks))}"

    def next_name(self, kind: str) -> str:
        """For an operation that is executed at once and has none: the n-th of one rank is the n-th of the others."""
        with self._lock:
            self._calls[kind] = number = self._calls.get(kind, 0) + 1
        return f"{kind}.noname.{number}"

    def count_anew(self) -> None:
        """All ranks are at one place, to which they may have come by different numbers of operations."""
        with self._lock:
            self._calls = {}
        if self._position is not None:
            self._position.count_anew()


class HorovodState:
    """Of this process.

    Attributes:
      job: the ranks.
      sets: in use, by their numbers; empty before ``init``.
      reduced_by: the ops, and ``backward_passes_per_step``, by which optimizers and tapes reduce.
    """

    def __init__(self) -> None:
        self.job = process().job
        self.sets: dict[int, Members] = {}
        self.reduced_by: set[str] = set()
        self._alone: Group | None = None
        self._next = 1

    @property
    def begun(self) -> bool:
        """Whether ``init`` was called, and ``shutdown`` not."""
        return bool(self.sets)

    def begin(self) -> None:
        """From now on what is wrapped is averaged, and nothing else.

        Raises:
          SettingsError: settings that are about the automatic average.
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
        if self.run_begins not in runs:  # a second ``init``
            runs.append(self.run_begins)
        self.sets[0] = Members(0, range(self.job.world.size), self.job.world)

    def run_begins(self) -> None:
        """A graph is about to be run: what fails from now on ends it."""
        for members in list(self.sets.values()):
            members.run_begins()

    def end(self) -> None:
        """Nothing is begun any more."""
        for members in self.sets.values():
            if members.negotiation is not None:
                members.negotiation.close()
        self.sets, self.reduced_by = {}, set()

    def add(self, ranks: Sequence[int]) -> Members:
        """A process set. Collective: all ranks, which have agreed on it."""
        world = self.job.world
        number = self._next
        self._next += 1
        members = Members(number, ranks, world.group(ranks) if world.rank in ranks else None)
        self.sets[number] = members
        return members

    def remove(self, number: int) -> None:
        """Collective: all ranks, which have agreed on it."""
        members = self.sets.pop(number)
        if members.negotiation is not None:
            members.negotiation.close()

    def alone(self) -> Group:
        """This rank by itself."""
        if self._alone is None:
            self._alone = self.job.world.group([self.job.world.rank])
        return self._alone

    def members(self, number: int | None) -> Members:
        """Of a process set.

        Raises:
          ValueError: ``init`` was not called.
          UnknownProcessSet: there is none of this number.
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

    def own(self, number: int | None) -> tuple[Members, Negotiation]:
        """Of a process set that this process is in; raises as ``members`` does."""
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
