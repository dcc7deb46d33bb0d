"""This process's part in the job: made once, when tfdist is imported."""

from __future__ import annotations

import dataclasses
from types import TracebackType

from tfdist.settings import Settings
from tfdist.world import World


@dataclasses.dataclass
class Job:
    """The ranks, the settings, and the one switch.

    Attributes:
      world: the ranks.
      settings: from the environment.
      broadcasts: whether graphs built from now on get rank 0's initial values.
    """

    world: World
    settings: Settings
    broadcasts: bool = True


class BroadcastSwitch:
    """Sets ``job.broadcasts`` at once; as a context manager it restores the previous state at the end."""

    def __init__(self, job: Job, on: bool) -> None:
        self._job = job
        self._previous = job.broadcasts
        job.broadcasts = on

    def __enter__(self) -> None:
        """Nothing more to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job.broadcasts = self._previous
