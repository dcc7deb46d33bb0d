"""Hooks of ``sys.exit``, ``os._exit`` and ``os.exec``: note the exit code, and exits that skip Python's own shutdown.

A ``SystemExit`` that a script raises without ``sys.exit`` is not noted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.processes.exit_code import note, over
from tfdist.training.steps import Steps


class _Exit(SystemExit):
    """A ``SystemExit`` that notes its code when the interpreter ends with it, and not when it is caught."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        code = super().code
        try:
            sys._getframe(1)
        except ValueError:  # no Python code has called this, but the interpreter
            note(code)
        return code


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module. The other ``exec`` functions of ``os`` call ``execv`` or ``execve``."""
    pid = os.getpid()

    def leave_program(status: Any = None, /) -> NoReturn:
        raise _Exit(status)

    def leave_at_once(original: Callable[..., Any], status: int) -> Any:
        # The companion reports a rank that exits with an error, and ends the job at once. Child processes are no ranks.
        if os.getpid() == pid and status == 0:
            over()
        return original(status)

    def execute(original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() == pid and os.access(path, os.X_OK):  # else it fails, and the rank continues
            over()
        return original(path, *args, **kwargs)

    leave_program.__doc__ = sys.exit.__doc__
    patches.assign(sys, "exit", leave_program)
    patches.replace(os, "_exit", leave_at_once)
    for name in ("execv", "execve"):
        patches.replace(os, name, execute)
