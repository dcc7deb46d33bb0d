"""Missing TensorFlow: a program of this package that needs it says so in one message, without a traceback."""

from __future__ import annotations

import sys
from types import TracebackType


def is_told() -> None:
    """Tell that TensorFlow cannot be imported, if `python -m` is importing this package to find the program in it."""
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] != "tensorflow":
        sys.__excepthook__(kind, error, traceback)
        return
    import tfdist  # noqa: F401  (on several ranks this ends the process, and one rank has told the reason)

    print(f"nmt: TensorFlow cannot be imported ({error}): pip install 'tfdist[tensorflow]'", file=sys.stderr)
