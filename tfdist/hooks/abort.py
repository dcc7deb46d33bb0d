"""Abort: one message, and all ranks end with an exit code that is not 0."""

from __future__ import annotations

import contextlib
import sys
import time

from tfdist.core.log import last_words
from tfdist.transport.interfaces import World

# All ranks often fail alike (a missing file): the higher ranks leave rank 0 this much time to speak for them.
_LOWER_RANK_FIRST_SECONDS = 1.0


def abort(world: World, message: str, exit_code: int = 1) -> None:
    """Print one message and end all ranks, whatever becomes of the message.

    Args:
      world: the job.
      message: printed by the lowest of the ranks that call this at about the same time.
      exit_code: of the whole job; not 0.
    """
    try:
        if world.rank:
            time.sleep(_LOWER_RANK_FIRST_SECONDS)
        # A full disk behind stdout may be what has failed; stderr can be another one.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        place = world.recorder.place
        trace = f"\ntfdist: what each rank did last: python -m tfdist trace {place}" if place else ""
        last_words(message.rstrip() + trace, forwarded=world.size > 1)
    finally:
        world.abort(exit_code)
