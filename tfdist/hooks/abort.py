"""Abort: one message, and all ranks end with an exit code that is not 0."""

from __future__ import annotations

import contextlib
import sys
import time

from tfdist.transport.interfaces import World

# All ranks often fail alike (a missing file): the higher ranks leave rank 0 this much time to speak for them.
_LOWER_RANK_FIRST_SECONDS = 1.0
_OUTPUT_SECONDS = 0.2  # for the launcher to forward the message before it ends the ranks


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
        with contextlib.suppress(Exception):
            sys.stderr.write(message.rstrip() + "\n")
            if world.recorder.place:
                sys.stderr.write(f"tfdist: what each rank did last: python -m tfdist trace {world.recorder.place}\n")
            sys.stderr.flush()
        if world.size > 1:
            time.sleep(_OUTPUT_SECONDS)
    finally:
        world.abort(exit_code)
