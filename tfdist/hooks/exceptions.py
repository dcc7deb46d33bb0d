"""One rank's failure ends the job: with that rank's number, its traceback, and an exit code that is not 0."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from tfdist.transport.interfaces import World

# All ranks often fail alike (a missing file): the higher ranks leave rank 0 this much time to speak for them.
_LOWER_RANK_FIRST_SECONDS = 1.0
_OUTPUT_SECONDS = 0.2  # for the launcher to forward the message before it ends the ranks


def abort(world: World, message: str, exit_code: int = 1) -> None:
    """Print one message and end all ranks.

    Args:
      world: the job.
      message: printed by the lowest of the ranks that call this at about the same time.
      exit_code: of the whole job; not 0.
    """
    if world.rank:
        time.sleep(_LOWER_RANK_FIRST_SECONDS)
    sys.stdout.flush()
    sys.stderr.write(message.rstrip() + "\n")
    sys.stderr.flush()
    if world.size > 1:
        time.sleep(_OUTPUT_SECONDS)
    world.abort(exit_code)


class FailureHook:
    """A ``sys.excepthook`` that ends the job."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._previous: Callable[..., object] = sys.excepthook

    def install(self) -> None:
        """Take the hook over; the previous one is not called, since the job is over."""
        sys.excepthook = self

    def uninstall(self) -> None:
        """Give the hook back."""
        if sys.excepthook is self:
            sys.excepthook = self._previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        abort(self._world, f"tfdist: rank {self._world.rank} of {self._world.size} failed:\n{text}")
