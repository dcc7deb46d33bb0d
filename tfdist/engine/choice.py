"""Choice of the engine for each bucket: a rule of its size, and of what the ranks of a node can share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfdist.core.log import announce
from tfdist.core.settings import Settings, SettingsError, settings_difference
from tfdist.core.system import processors
from tfdist.engine._mpi_engine import MpiEngine
from tfdist.engine._node_sum import NodeSumEngine
from tfdist.engine._small_buckets import for_small_buckets
from tfdist.engine.engines import Bucket, BucketAllReduce, Engine
from tfdist.processes.devices import threads_of
from tfdist.transport.interfaces import Channel, World

_MOST_THREADS = 4  # more do not read memory faster


@dataclasses.dataclass(frozen=True)
class Choice:
    """The engines of a job, which are asked in turn for each bucket; MPI takes the rest.

    Attributes:
      small: engine for small buckets; None: there is none.
      large: engine for buckets that the ranks of a node add in mapped memory; None: they cannot map it.
    """

    small: Engine | None = None
    large: Engine | None = None

    @property
    def shares_memory(self) -> bool:
        """Whether an engine may use the channel's memory of a node."""
        return bool(self.small or self.large)

    def open(self, bucket: Bucket, channel: Channel, tuned: bool) -> tuple[Engine, BucketAllReduce]:
        """Return the engine that takes a bucket, and open it. Collective: the channel's group.

        Args:
          bucket: the bucket.
          channel: channel of the bucket's collective.
          tuned: False if MPI must take it.
        """
        for engine in filter(None, [self.small, self.large] if tuned else []):
            if (opened := engine.open(bucket, channel)) is not None:
                return engine, opened
        mpi = MpiEngine()
        return mpi, mpi.open(bucket, channel)


class Engines:
    """The choice of a job, which is made at the first exchange of gradients.

    Args:
      world: the ranks.
      settings: function that returns the present settings.

    Attributes:
      choice: the choice; None before the first exchange of gradients.
    """

    def __init__(self, world: World, settings: Callable[[], Settings]) -> None:
        self._world = world
        self._settings = settings
        self.choice: Choice | None = None

    @property
    def current(self) -> Choice:
        """The choice; MPI alone before it is made."""
        return self.choice or Choice()

    def choose(self) -> Choice:
        """Return the choice. Collective: all ranks at the first call.

        Raises:
          SettingsError: the ranks' settings differ.
        """
        if self.choice is None:
            settings = self._settings()
            difference = settings_difference(
                self._world.control.all_gather_object(settings, "the comparison of settings")
            )
            if difference:
                raise SettingsError(difference)
            self.choice = Choice() if settings.engine == "mpi" else self._by_rule()
        return self.choice

    def _by_rule(self) -> Choice:
        world = self._world
        spread = len(world.topology.nodes) > 1
        small = for_small_buckets(world.size, spread)
        if all(len(node) == 1 for node in world.topology.nodes):
            return Choice(small)
        if obstacle := world.mapped_memory_obstacle():
            announce(
                f"the ranks of a machine cannot map each other's memory ({obstacle}): they send messages through MPI "
                "instead, more slowly"
            )
            return Choice(small)
        own = processors()
        # The number of threads changes no bit of a result, so the ranks' numbers may differ.
        threads = 1 if spread else min(_MOST_THREADS, threads_of(own, world.local_affinities(own)))
        return Choice(small, NodeSumEngine(threads))
