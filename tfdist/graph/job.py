"""Job: the state that a process has once: its ranks, its engines, and switches that ``tfdist.configure`` sets."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tfdist.core.log import announce, debug, traces
from tfdist.core.settings import CONFIGURE, Settings
from tfdist.engine.choice import Engines
from tfdist.engine.collective import Collective, StopRequest
from tfdist.engine.sparse_rows import SparseMode
from tfdist.engine.wait_table import WaitTable
from tfdist.graph.data_comparison import DataComparison
from tfdist.graph.failures import Failures
from tfdist.graph.half_precision_check import HalfPrecisionCheck
from tfdist.record.flight_recorder import FlightRecorder
from tfdist.transport import agreement
from tfdist.transport.interfaces import Group, World


class Reducer(Protocol):
    """Replaces gradients before they are applied. The default reducer replaces them by their average.

    It is called where the result is needed: in a session's graph, in a function, or eagerly.
    """

    def reduce(self, gradients: Sequence[Any], names: Sequence[str], group: Group) -> list[Any]:
        """Return the gradients to apply instead.

        Collective: the group's ranks, with the same names, dtypes and shapes.

        Args:
          gradients: ``tf.Tensor`` or ``tf.IndexedSlices``, in the same order on all ranks.
          names: names of their variables.
          group: ranks whose gradients are combined.

        Returns:
          As many gradients, of the same kinds, dtypes and static shapes; slices may have other rows.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class LastSteps:
    """Last steps of an epoch: accumulated gradients are then applied, even if fewer steps were added than usual.

    Attributes:
      number: number of steps that are left; 1 if the next step is the last.
    """

    number: int


_SET_APART = (
    "trained variables were set on some ranks, between two steps. Now and each time this happens again, all ranks take "
    "rank 0's values, and one step uses rank 0's gradients alone. Set the variables on all ranks, or before the first "
    "step"
)
_EAGER = 64  # largest number of collectives that are kept for the next eager step


class _Alone(threading.local):
    depth = 0


@dataclasses.dataclass
class Switches:
    """Settings for programs built from now on, set by ``tfdist.configure`` and similar functions; same on all ranks.

    Attributes:
      settings: settings of the environment, with later changes by ``tfdist.configure``.
      reducer: reducer of gradients; None: their average.
      exchange: ``graph_exchange.GraphExchange`` that combines the buckets it takes; None: engines combine all.
      broadcasts: True if variables get rank 0's initial values.
      sparse_as_dense: True if averages of slices are returned as dense tensors.
      sparse_ways: sparse mode by variable name, where it differs from the settings' mode.
      last_steps: steps of an epoch that are left; None: the end of the epoch is not known.
      automatic: True if all gradients are averaged and all variables shared; False: only those that the script has
        wrapped.
      wrapped: True if the script has wrapped something.
    """

    settings: Settings
    reducer: Reducer | None = None
    exchange: Any = None
    broadcasts: bool = True
    sparse_as_dense: bool = False
    sparse_ways: dict[str, SparseMode] = dataclasses.field(default_factory=dict)
    last_steps: LastSteps | None = None
    automatic: bool = True
    wrapped: bool = False
    _alone: _Alone = dataclasses.field(default_factory=lambda: _Alone())

    @property
    def shares(self) -> bool:
        """Whether variables get rank 0's values, in this thread."""
        return self.broadcasts and self.rewrites

    @property
    def rewrites(self) -> bool:
        """Whether gradients that this thread builds or executes now are averaged automatically."""
        return self.automatic and not self.alone_depth

    @property
    def alone_depth(self) -> int:
        """More than 0 while this thread is inside ``tfdist.alone``: its tapes and variables are this rank's own."""
        return self._alone.depth

    @property
    def configured(self) -> str:
        """Changes by ``tfdist.configure``, as text that must be the same on all ranks; empty if there are none."""
        given = {n: getattr(self.settings, n) for n, origin in self.settings.origins.items() if origin == CONFIGURE}
        if self.sparse_as_dense:
            given["sparse_as_dense"] = True
        if self.sparse_ways:
            given["sparse_ways"] = dict(sorted(self.sparse_ways.items()))
        words = ", ".join(f"{name}={given[name]!r}" for name in sorted(given))
        return f" after tfdist.configure({words})" if words else ""


class FunctionCollectives:
    """Collectives of functions and of eager execution.

    Attributes:
      failures: exceptions inside collectives of functions.
    """

    def __init__(self) -> None:
        self.failures = Failures()
        self._eager: dict[Collective, None] = {}  # executed last, the latest at the end

    def executed(self, collective: Collective) -> None:
        """Keep a collective that is executed eagerly: the next step may execute it again."""
        self._eager.pop(collective, None)
        self._eager[collective] = None
        for oldest in list(self._eager)[:-_EAGER]:
            del self._eager[oldest]

    @property
    def executed_last(self) -> list[Collective]:
        """The collective that was executed last; empty if there is none."""
        return list(self._eager)[-1:]

    def forget(self, group: Group) -> None:
        """Drop the collectives that no rank has a function for any more.

        Each rank collects garbage at another time, so the ranks agree on what they drop. The next function with the
        same exchange must find its collective open on all ranks or on none.

        Collective: the group's ranks.
        """
        from tfdist.graph import function_state  # imports TensorFlow: a single process does not need it

        used = function_state.in_use() | self._eager.keys()
        idle = [k for k, c in group.kept.items() if c.channel is not None and c not in used]
        place = "the forgetting of exchanges of functions that are gone"
        if all(group.control.arrive(place, int(bool(idle)))):
            ranks: list[list[str]] = group.control.all_gather_object(idle, place)
            for key in set(idle).intersection(*ranks):
                del group.kept[key]


@dataclasses.dataclass(frozen=True)
class Job:
    """State of the job in this process.

    Attributes:
      world: the ranks.
      engines: engines that combine arrays.
      switches: settings that can change.
      functions: collectives outside sessions.
      rounding: ranks whose devices do not compute in the configured half precision.
      stop: request to end training, which ranks pass on with their exchanges of gradients and weights.
      ends_epoch: request to end an epoch of ``fit``, passed on in the same way.
      data_comparison: comparison of the ranks' data.
      threads: number and name of the thread that trains, and what it runs, for each call inside another one.
    """

    world: World
    engines: Engines
    switches: Switches
    functions: FunctionCollectives = dataclasses.field(default_factory=FunctionCollectives)
    rounding: HalfPrecisionCheck = dataclasses.field(default_factory=HalfPrecisionCheck)
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)
    ends_epoch: StopRequest = dataclasses.field(default_factory=StopRequest)
    data_comparison: DataComparison = dataclasses.field(default_factory=DataComparison)
    threads: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def training(self, what: str) -> Iterator[None]:
        """Guard code of this thread that all ranks run together. ``what``: description for messages.

        With two threads that train at a time, the ranks would meet in different orders.

        Raises:
          RuntimeError: another thread runs such code.
        """
        thread, threads = threading.current_thread(), self.threads
        if threads and threads[-1][0] != thread.ident:
            _, name, before = threads[-1]
            raise RuntimeError(
                f"two threads of rank {self.world.rank} train at the same time: {name} runs {before}, and "
                f"{thread.name} runs {what}. The ranks would meet in another order: train in one thread, or one after "
                "the other"
            )
        threads.append((thread.ident or 0, thread.name, what))
        self.world.waits.callers.called()
        exchange = self.switches.exchange
        try:
            with contextlib.nullcontext() if exchange is None else exchange.running(what):
                yield
        finally:
            threads.pop()

    @property
    def recorder(self) -> FlightRecorder:
        """Flight recorder of this rank's exchanges."""
        return self.world.recorder

    @property
    def compiles(self) -> bool:
        """Whether XLA can compile a training step: no exchange passes through the host."""
        switches = self.switches
        by_the_host = switches.settings.changes_updates or switches.settings.sync != "gradients" or switches.reducer
        return bool(switches.exchange is not None and switches.exchange.compiled and not by_the_host)

    def failing_plainly(self, call: Callable[[], Any], failures: Failures | None = None) -> Any:
        """Run a call, and raise the original error of a failed exchange instead of TensorFlow's error.

        Args:
          call: the call.
          failures: exceptions noted in a session's graph; None: in functions.
        """
        import tensorflow as tf  # not at the start of a job, which needs none

        try:
            return call()
        except tf.errors.OpError as error:
            exchange = self.switches.exchange
            failure = (self.functions.failures if failures is None else failures).behind(error)
            failure = failure or (None if exchange is None else exchange.failure(error))
            if failure is not None:
                raise failure from None
            raise

    @functools.cached_property
    def say_set_apart(self) -> Callable[[], None]:
        """Function that logs once that only some ranks have set trained variables."""
        return functools.cache(lambda: announce(_SET_APART))

    def open(self, collectives: Sequence[Collective]) -> None:
        """Compare the plans of collectives that have no channel yet between their ranks, and open them.

        Collective: the ranks of each collective, in the same order.

        Args:
          collectives: collectives of one or more groups; collectives that are open already are skipped.

        Raises:
          DisagreementError: the ranks' plans differ.
        """
        closed = [c for c in collectives if c.channel is None]
        for group in dict.fromkeys(c.group for c in closed):
            members = [c for c in closed if c.group is group]
            plan = [f"{line} in {c.name}" for c in members for line in c.plan]
            agreement.agree(group.control, plan, "the first run of an exchange")
            self.functions.forget(group)
            self.rounding.compare(group)
            for collective in members:
                if collective.everyone and collective.averages:
                    collective.stop, collective.ends_epoch = self.stop, self.ends_epoch
                shares_memory = collective.everyone and collective.shares_memory
                collective.open(self.engines.choose() if shares_memory else self.engines.current)
                collective.traced, waits = traces(), self.switches.settings.wait_table
                if waits and collective.averages and collective.everyone:
                    collective.wait_table = WaitTable(waits, len(collective.exchanges), self.world.hosts)
                debug(f"{collective.name}: {collective.described()}")


@contextlib.contextmanager
def alone(job: Job, reason: str) -> Iterator[None]:
    """See ``tfdist.alone``."""
    here = job.switches._alone
    here.depth += 1
    try:
        with job.world.waits.alone(reason):
            yield
    finally:
        here.depth -= 1


def broadcasting(switches: Switches, on: bool) -> contextlib.ExitStack:
    """Set ``broadcasts`` at once. As a context manager the result restores the previous value at the end."""
    end = contextlib.ExitStack()
    end.callback(setattr, switches, "broadcasts", switches.broadcasts)
    switches.broadcasts = on
    return end
