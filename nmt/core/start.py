"""Start of a program of this package by `python -m`, before TensorFlow is imported, which takes seconds."""

from __future__ import annotations

import signal
import sys
from types import TracebackType


def begin() -> None:
    """Prepare the process, if `python -m` is importing this package to find the program in it.

    Until the program works, Ctrl-C ends the process at once and without a traceback: there is nothing to save. If
    TensorFlow cannot be imported, one message says so.
    """
    if sys.argv[:1] != ["-m"]:
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] != "tensorflow":
        sys.__excepthook__(kind, error, traceback)
        return
    import tfdist  # noqa: F401  (on several ranks this ends the process, and one rank has told the reason)

    print(f"nmt: TensorFlow cannot be imported ({error}): pip install 'tfdist[tensorflow]'", file=sys.stderr)
