"""Hooks of ``sys.exit``, ``os._exit`` and ``os.exec``: the exit code, and ends that leave Python's own out.

A ``SystemExit`` that a script raises by itself is not seen.
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
    """Notes its code when the interpreter ends with it: an exit that is caught is none."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        code = super().code
        try:
            sys._getframe(1)
        except ValueError:  # no Python has called this
            note(code)
        return code


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """See the module. What other functions of ``os`` execute programs by, is ``execv`` and ``execve``."""
    pid = os.getpid()

    def leave_program(status: Any = None, /) -> NoReturn:
        raise _Exit(status)

    def leave_at_once(original: Callable[..., Any], status: int) -> Any:
        # One that has failed is told of by its watchdog, and ends the job at once. Children are no ranks.
        if os.getpid() == pid and status == 0:
            over()
        return original(status)

    def execute(original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() == pid and os.access(path, os.X_OK):  # else it fails, and the rank goes on
            over()
        return original(path, *args, **kwargs)

    leave_program.__doc__ = sys.exit.__doc__
    patches.assign(sys, "exit", sys.exit, leave_program)
    patches.replace(os, "_exit", leave_at_once)
    for name in ("execv", "execve"):
        patches.replace(os, name, execute)
