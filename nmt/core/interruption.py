"""Ctrl-C: while a program of this package is imported, which takes seconds, it ends the process without a traceback.

There is nothing to save during the import, and when the program has done its work. Between them Ctrl-C raises Python's
KeyboardInterrupt. SIGTERM ends a process at once, unless the program has files to remove before.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any


def ends_at_once() -> None:
    """Let Ctrl-C end the process at once, if `python -m` is importing this package to find the program in it."""
    if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


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
