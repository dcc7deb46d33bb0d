"""This process's part in the job: made once, when tfdist is imported."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tfdist.core.settings import Settings
from tfdist.core.timeline import Recorder, Silent
from tfdist.transport.interfaces import Sharing, World

if TYPE_CHECKING:
    from tfdist.engine.collective import Collective
    from tfdist.engine.sparse_rows import Way


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How gradients travel on this machine.

    Attributes:
      crossover_bytes: from this size on in the node's own way.
      piece_bytes: of staging in shared memory; 0: none, the ranks of a node read each other's tensors where they lie.
    """

    crossover_bytes: float
    piece_bytes: int

    def sharing(self, tensors: int) -> Sharing | None:
        """What a channel needs of a node for exchanges of so many tensors at most."""
        if math.isinf(self.crossover_bytes):
            return None
        # Also published: the buffer of the results.
        return Sharing(self.piece_bytes, 0 if self.piece_bytes else tensors + 1)


@dataclasses.dataclass
class Training:
    """A session that trains, and how to run it without hooks."""

    session: Any
    run: Callable[..., Any]


@dataclasses.dataclass
class Job:
    """The ranks, the settings, and the switches.

    Attributes:
      world: the ranks.
      settings: from the environment and ``tfdist.configure``.
      broadcasts: whether graphs built from now on get rank 0's initial values.
      sparse_as_dense: whether averages of slices are handed out as dense tensors.
      sparse_ways: how rows travel, by variable name, where it is not as the settings say.
      recorder: of what happens when.
      tuning: of the engine; None until the first gradients are to travel.
      training: the session that has trained last, if it still exists.
      programs: the collectives of functions and of what is executed eagerly, by what they exchange.
      open_together: gives collectives their channels; collective.
      take_values: gives variables one rank's values; collective.
      alone_depth: more than 0 while this rank works by itself: tapes and variables are then its own.
      installed: it has been, once.
      failure: what went wrong in one of these, to be raised instead of TensorFlow's wrapping.
    """

    world: World
    settings: Settings
    broadcasts: bool = True
    sparse_as_dense: bool = False
    sparse_ways: dict[str, Way] = dataclasses.field(default_factory=dict)
    recorder: Recorder = dataclasses.field(default_factory=Silent)
    tuning: Tuning | None = None
    training: Callable[[], Training | None] | None = None
    programs: dict[str, Collective] = dataclasses.field(default_factory=dict)
    open_together: Callable[[Sequence[Collective]], None] = lambda collectives: None
    take_values: Callable[[Sequence[Any], int], None] = lambda variables, root: None
    alone_depth: int = 0
    installed: bool = False
    failure: BaseException | None = None


@contextlib.contextmanager
def alone(job: Job, reason: str) -> Iterator[None]:
    """See ``tfdist.alone``."""
    job.alone_depth += 1
    broadcasts, job.broadcasts = job.broadcasts, False
    try:
        with job.world.alone(reason):
            yield
    finally:
        job.alone_depth -= 1
        job.broadcasts = broadcasts


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
