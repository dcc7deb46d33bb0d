"""Exit code of this process, which Python tells nobody before the process has ended; and ends that leave Python out."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn


class _Ending:
    """What is known of this process's end."""

    code = 0
    program_is_over: Callable[[], None] | None = None


def note(code: Any) -> None:
    """The process ends with it, as ``sys.exit`` takes it."""
    _Ending.code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def exit_code() -> int:
    """What this process, whose program is over, is ending with as far as is known; else 0."""
    return _Ending.code


def leave() -> NoReturn:
    """End this process with its exit code at once: what C libraries do at an end is left out."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code())


def when_over(action: Callable[[], None]) -> None:
    """Have this done where the program ends without the end of Python, by ``os._exit`` or ``os.exec``."""
    _Ending.program_is_over = action


def over() -> None:
    """The program is about to end so: once."""
    action, _Ending.program_is_over = _Ending.program_is_over, None
    if action is not None:
        action()


class _AfterAll:
    """Does something when Python has done all that is registered for its end, and before its modules go.

    What is registered with ``atexit`` before the import comes after tfdist's own end, and may take as long as it likes:
    an upload, say. Python then drops its table of importers, first of all (Python/pylifecycle.c,
    ``finalize_modules_delete_special``): what stands there hears of it.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action, self._pid = action, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._pid:
            return
        if sys.is_finalizing():
            self._action()
        else:  # a program has set it
            when_python_ends(self._action)

    def __str__(self) -> str:
        return "... "


def when_python_ends(action: Callable[[], None]) -> None:
    """Have this done last of all that is done in Python."""
    sys.ps2 = _AfterAll(action)
