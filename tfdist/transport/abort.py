"""Abort: one message, and all ranks end with an exit code that is not 0."""

from __future__ import annotations

import sys
import time

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
