"""Ctrl-C: while a program of this package is imported, which takes seconds, it ends the process without a traceback.

There is nothing to save during the import. Afterwards Ctrl-C raises Python's KeyboardInterrupt again.
"""

from __future__ import annotations

import signal
import sys


def ends_at_once() -> None:
    """Let Ctrl-C end the process at once, if `python -m` is importing this package to find the program in it."""
    if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_raised() -> None:
    """Let Ctrl-C raise KeyboardInterrupt once the program runs. If Ctrl-C is ignored, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
