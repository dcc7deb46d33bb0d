"""Ctrl-C while a program of this package is imported, which takes seconds: it ends at once, and without a traceback.

There is nothing to save yet. Afterwards Ctrl-C is Python's KeyboardInterrupt again.
"""

from __future__ import annotations

import signal
import sys


def ends_at_once() -> None:
    """While a program is imported: `python -m` looks for it in this package, and has found none as yet."""
    if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_raised() -> None:
    """When it begins. Where Ctrl-C is ignored, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
