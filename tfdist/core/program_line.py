"""Program line: in which line of the user's script a thread is, for stall messages."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOREIGN = tuple(
    os.path.join(path, "")
    for path in {_PACKAGE, *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
)


def program_line(thread: int) -> str:
    """Where a thread is: the innermost line that is neither a package's nor Python's own; else simply the innermost.

    Args:
      thread: its identity (``threading.get_ident``).
    """
    innermost = frame = sys._current_frames().get(thread)
    while frame is not None and _foreign(frame):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return ""
    return f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def _foreign(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_FOREIGN) or name.startswith("<")
