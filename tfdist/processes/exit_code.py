"""Exit code of this process, which Python does not expose while the process ends; ends without the end of Python."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn


class _Ending:
    """State of this process's end."""

    code = 0
    program_is_over: Callable[[], None] | None = None


def note(code: Any) -> None:
    """Note the exit code of this process, in any form that ``sys.exit`` takes."""
    _Ending.code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def exit_code() -> int:
    """Return the exit code that was noted for this process, which is ending; 0 if there is none."""
    return _Ending.code


def leave() -> NoReturn:
    """End this process at once with its exit code, without the exit handlers of C libraries."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code())


def when_over(action: Callable[[], None]) -> None:
    """Register an action for a program that ends without the end of Python, by ``os._exit`` or ``os.exec``."""
    _Ending.program_is_over = action


def over() -> None:
    """Run the action of ``when_over``, once: the program is about to end without the end of Python."""
    action, _Ending.program_is_over = _Ending.program_is_over, None
    if action is not None:
        action()


class _AfterAll:
    """Runs an action after everything that is registered for Python's end, and before Python drops its modules.

    Functions that were registered with ``atexit`` before the import run after tfdist's own end, and may take long, for
    example for an upload. Then Python deletes attributes of ``sys``, before its modules (Python/pylifecycle.c,
    ``finalize_modules_delete_special``). ``sys.ps2`` is one of them, and this object is its value.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action, self._pid = action, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._pid:
            return
        if sys.is_finalizing():
            self._action()
        else:  # a program has set sys.ps2
            when_python_ends(self._action)

    def __str__(self) -> str:
        return "... "


def when_python_ends(action: Callable[[], None]) -> None:
    """Register an action that runs after everything else in Python."""
    sys.ps2 = _AfterAll(action)
