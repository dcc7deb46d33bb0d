"""Program line: the lines that this process's threads execute, for the messages of ranks that wait for this one."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOREIGN = tuple(
    os.path.join(path, "")
    for path in {_PACKAGE, *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
)
_DEEPEST = 40  # lines of a thread's stack, at most


def program_line(thread: int) -> str:
    """Return the innermost line of a thread that belongs neither to a package nor to Python; else the innermost line.

    Args:
      thread: identifier of the thread (``threading.get_ident``).
    """
    with _uncollected():
        innermost = frame = sys._current_frames().get(thread)
        while frame is not None and _foreign(frame):
            frame = frame.f_back
        frame = frame or innermost
        if frame is None:
            return ""
        return f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def stacks() -> str:
    """Return the stacks of all threads but the calling one, the main thread first, innermost lines first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    lines = []
    with _uncollected():
        frames = sys._current_frames()
        frames.pop(own, None)
        for thread in sorted(frames, key=lambda thread: (thread != main, thread)):
            lines += [f"{names.get(thread, thread)}:", *itertools.islice(_lines(frames[thread]), _DEEPEST)]
    return "\n".join(lines)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch garbage collection off within the block.

    ``f_back`` makes an object, and in CPython 3.11 that may begin a collection. A finalizer may then let the other
    thread run. The frame that is being read is gone, and the process ends with SIGSEGV (Python/frame.c,
    _PyFrame_MakeAndSetFrameObject). Later versions collect only between two instructions.
    """
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _lines(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        if frame.f_code.co_filename != threading.__file__:
            yield f"  {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back


def _foreign(frame: FrameType) -> bool:
    return foreign_file(frame.f_code.co_filename)


def foreign_file(name: str) -> bool:
    """Return whether a source file belongs to a package or to Python."""
    return name.startswith(_FOREIGN) or name.startswith("<")
