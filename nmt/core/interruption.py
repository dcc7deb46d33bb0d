"""Ctrl-C and SIGTERM: they end a process at once, except while a program has something to save or to remove.

Before the program works, and when it has done its work, there is nothing to save (`nmt.core.start`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def is_raised() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt in the block, if it ends the process at once before and after."""
    ends = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def termination_is_raised() -> Iterator[None]:
    """Let SIGTERM raise SystemExit in the block, so that what the program has opened is closed and removed."""

    def leave(*_: Any) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
