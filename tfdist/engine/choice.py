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
from tfdist.engine.engines import Choice
from tfdist.processes.devices import threads_of
from tfdist.transport.interfaces import World

_MOST_THREADS = 4  # more do not read memory faster
_BY_MESSAGES = Choice(MpiEngine())


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
        return self.choice or _BY_MESSAGES

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
            self.choice = _BY_MESSAGES if settings.engine == "mpi" else self._by_rule()
        return self.choice

    def _by_rule(self) -> Choice:
        world = self._world
        spread = len(world.topology.nodes) > 1
        small = for_small_buckets(world.size, spread)
        if all(len(node) == 1 for node in world.topology.nodes):
            return dataclasses.replace(_BY_MESSAGES, small=small)
        if obstacle := world.mapped_memory_obstacle():
            announce(
                f"the ranks of a machine cannot map each other's memory ({obstacle}): they send messages through MPI "
                "instead, more slowly"
            )
            return dataclasses.replace(_BY_MESSAGES, small=small)
        own = processors()
        # The number of threads changes no bit of a result, so the ranks' numbers may differ.
        threads = 1 if spread else min(_MOST_THREADS, threads_of(own, world.local_affinities(own)))
        return dataclasses.replace(_BY_MESSAGES, small=small, large=NodeSumEngine(threads))
