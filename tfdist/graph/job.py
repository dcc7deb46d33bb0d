"""Job: what a process has once, its ranks, its engines, and the switches that configure and its like set."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from tfdist.core.flight_recorder import Recorder
from tfdist.core.settings import CONFIGURE, Settings
from tfdist.engine.autotune import Engines
from tfdist.engine.collective import Collective, StopRequest
from tfdist.engine.sparse_rows import SparseMode
from tfdist.graph.data_comparison import DataComparison
from tfdist.graph.failures import Failures
from tfdist.transport import agreement
from tfdist.transport.interfaces import Group, World
from tfdist.transport.rounding import Rounding


class Reducer(Protocol):
    """What becomes of gradients between "they are to be applied" and their application: by default, their average.

    It is called where the average is to stand: in a session's graph, in a function, or eagerly.
    """

    def reduce(self, gradients: Sequence[Any], names: Sequence[str], group: Group) -> list[Any]:
        """What is applied instead.

        Collective: the group's ranks, with the same names, dtypes and shapes.

        Args:
          gradients: ``tf.Tensor`` or ``tf.IndexedSlices``, in the same order on all ranks.
          names: of their variables.
          group: the ranks whose gradients they are.

        Returns:
          As many, of the same kinds, dtypes and static shapes; slices may have other rows.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class LastSteps:
    """The steps after which gradients that are accumulated are applied, though there are fewer than usual.

    Attributes:
      number: of them: 1, if the next step is the last.
    """

    number: int


_EAGER = 64  # collectives that are kept for the next eager step, at most


class _Alone(threading.local):
    depth = 0


@dataclasses.dataclass
class Switches:
    """What programs are built by from now on: ``tfdist.configure`` and its like; the same on all ranks.

    Attributes:
      settings: of the environment, and as they were configured since.
      reducer: what becomes of gradients; None: their average.
      exchange: a ``graph_exchange.GraphExchange`` that combines what it takes; None: engines do.
      broadcasts: whether variables get rank 0's initial values.
      sparse_as_dense: whether averages of slices are handed out as dense tensors.
      sparse_ways: how rows travel, by variable name, where it is not as the settings say.
      last_steps: that are about to run, of an epoch; None: the end is not in sight.
      automatic: whether gradients are averaged and variables shared without being told; else only what the script
        has wrapped is.
      wrapped: it has wrapped something.
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
        """Whether what this thread builds or executes now is averaged by itself."""
        return self.automatic and not self.alone_depth

    @property
    def alone_depth(self) -> int:
        """More than 0 while this rank works by itself in this thread: tapes and variables are then its own."""
        return self._alone.depth

    @alone_depth.setter
    def alone_depth(self, depth: int) -> None:
        self._alone.depth = depth

    @property
    def configured(self) -> str:
        """What ``tfdist.configure`` has changed, in words that all ranks must have alike; empty if nothing."""
        given = {n: getattr(self.settings, n) for n, origin in self.settings.origins.items() if origin == CONFIGURE}
        if self.sparse_as_dense:
            given["sparse_as_dense"] = True
        if self.sparse_ways:
            given["sparse_ways"] = dict(sorted(self.sparse_ways.items()))
        words = ", ".join(f"{name}={given[name]!r}" for name in sorted(given))
        return f" after tfdist.configure({words})" if words else ""


class FunctionCollectives:
    """The collectives of functions and of what is executed eagerly.

    Attributes:
      failures: inside those of functions.
    """

    def __init__(self) -> None:
        self.failures = Failures()
        self._eager: dict[Collective, None] = {}  # those executed last, the latest at the end

    def known(self, key: str, collective: Collective) -> Collective:
        """The one that exchanges the same in the same group: this one, if there has been none."""
        known: Collective = collective.group.kept.setdefault(key, collective)
        return known

    def executed(self, collective: Collective) -> None:
        """It is executed eagerly, and will be again, perhaps."""
        self._eager.pop(collective, None)
        self._eager[collective] = None
        for oldest in list(self._eager)[:-_EAGER]:
            del self._eager[oldest]

    def forget(self, group: Group) -> None:
        """Let go of what no rank has a function for any more.

        Not at once, as the garbage of each rank is collected: the next function that exchanges the same must find it
        open on all ranks or on none.

        Collective: the group's ranks.
        """
        from tfdist.graph import function_state  # imports TensorFlow: not in a process that is alone

        used = function_state.in_use() | self._eager.keys()
        idle = [k for k, c in group.kept.items() if c.channel is not None and c not in used]
        place = "the forgetting of exchanges of functions that are gone"
        if all(group.control.arrive(place, int(bool(idle)))):
            ranks: list[list[str]] = group.control.all_gather_object(idle, place)
            for key in set(idle).intersection(*ranks):
                del group.kept[key]


class ThreadGuard:
    """One thread trains at a time: the ranks would meet in another order if two did.

    Args:
      world: the ranks.
      switches: the exchange that watches over what it has built.
    """

    def __init__(self, world: World, switches: Switches) -> None:
        self._world, self._switches = world, switches
        self._inside: tuple[int, str, str] | None = None

    @contextlib.contextmanager
    def running(self, what: str) -> Iterator[None]:
        """This thread is about to run something that all ranks run together.

        Raises:
          RuntimeError: another thread is in the midst of such a thing.
        """
        thread = threading.current_thread()
        previous = self._inside
        if previous is not None and previous[0] != thread.ident:
            raise RuntimeError(
                f"two threads of rank {self._world.rank} train at the same time: {previous[1]} runs {previous[2]}, and "
                f"{thread.name} runs {what}. The ranks would meet in another order: train in one thread, or one after "
                "the other"
            )
        self._inside = thread.ident or 0, thread.name, what
        self._world.called()
        exchange = self._switches.exchange
        try:
            with contextlib.nullcontext() if exchange is None else exchange.running(what):
                yield
        finally:
            self._inside = previous


@dataclasses.dataclass(frozen=True)
class Job:
    """This process's part in the job.

    Attributes:
      world: the ranks.
      engines: how arrays are combined.
      switches: what can be changed.
      functions: the collectives outside sessions.
      rounding: who lacks the half precision that was asked for.
      stop: whether training is to end, as it is told with exchanges of gradients and weights of all ranks.
      ends_epoch: likewise an epoch of ``fit``.
      data_comparison: whether the ranks' data are the same, where they should not be, or should.
    """

    world: World
    engines: Engines
    switches: Switches
    functions: FunctionCollectives = dataclasses.field(default_factory=FunctionCollectives)
    rounding: Rounding = dataclasses.field(default_factory=Rounding)
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)
    ends_epoch: StopRequest = dataclasses.field(default_factory=StopRequest)
    data_comparison: DataComparison = dataclasses.field(default_factory=DataComparison)

    @functools.cached_property
    def thread_guard(self) -> ThreadGuard:
        """Whose it is to train, of this process's threads."""
        return ThreadGuard(self.world, self.switches)

    @property
    def recorder(self) -> Recorder:
        """Of what this rank does with the others."""
        return self.world.recorder

    @property
    def compiles(self) -> bool:
        """Whether XLA can compile a training step: what it exchanges does not come by the host."""
        switches = self.switches
        by_the_host = switches.settings.changes_updates or switches.settings.sync != "gradients" or switches.reducer
        return bool(switches.exchange is not None and switches.exchange.compiled and not by_the_host)

    def failure(self, failures: Failures, error: Any) -> BaseException | None:
        """What is to be raised instead of TensorFlow's error: what has gone wrong in a collective.

        Args:
          failures: of the graph, or of functions.
          error: TensorFlow's (``tf.errors.OpError``).
        """
        exchange = self.switches.exchange
        return failures.behind(error) or (None if exchange is None else exchange.failure(error))

    def open(self, collectives: Sequence[Collective]) -> None:
        """Compare the plans of collectives that have no channel yet between their ranks, and open them.

        Collective: the ranks of each, in the same order.

        Args:
          collectives: of one group or several; those that are open already are left out.

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
                tuned = collective.everyone and collective.tuned
                collective.open(self.engines.choose() if tuned else self.engines.current)


@contextlib.contextmanager
def alone(job: Job, reason: str) -> Iterator[None]:
    """See ``tfdist.alone``."""
    switches = job.switches
    switches.alone_depth += 1
    try:
        with job.world.alone(reason):
            yield
    finally:
        switches.alone_depth -= 1


class BroadcastSwitch:
    """Sets ``broadcasts`` at once; as a context manager it restores the previous state at the end."""

    def __init__(self, switches: Switches, on: bool) -> None:
        self._switches = switches
        self._previous = switches.broadcasts
        switches.broadcasts = on

    def __enter__(self) -> None:
        """Nothing more to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._switches.broadcasts = self._previous
