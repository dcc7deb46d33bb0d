"""Abort: prints one message, and ends all ranks with an exit code that is not 0."""

from __future__ import annotations

import contextlib
import sys
import time

from tfdist.core.log import write_last_message
from tfdist.transport.interfaces import World

# All ranks often fail with the same error (a missing file). The higher ranks wait this long for rank 0 to print it.
_LOWER_RANK_FIRST_SECONDS = 1.0


def abort(world: World, message: str, exit_code: int = 1) -> None:
    """Print one message and end all ranks, even if the message cannot be printed.

    Args:
      world: the ranks.
      message: text, printed by the lowest of the ranks that call this at about the same time.
      exit_code: exit code of the whole job; not 0.
    """
    try:
        if world.rank:
            time.sleep(_LOWER_RANK_FIRST_SECONDS)
        # A full disk behind stdout may be the cause of the failure; stderr can go to another disk.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        place = world.recorder.place
        trace = f"\ntfdist: what each rank did last: python -m tfdist trace {place}" if place else ""
        write_last_message(message.rstrip() + trace, forwarded=world.size > 1)
    finally:
        world.abort(exit_code)
