"""Hook of ``sys.exit``: the exit code, which Python otherwise tells nobody before the process has ended.

A ``SystemExit`` that a script raises by itself is not seen.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NoReturn

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps


class _Ending:
    """What is known of this process's exit code."""

    code = 0


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


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """See the module."""

    def leave_program(status: Any = None, /) -> NoReturn:
        raise _Exit(status)

    leave_program.__doc__ = sys.exit.__doc__
    patches.assign(sys, "exit", sys.exit, leave_program)
