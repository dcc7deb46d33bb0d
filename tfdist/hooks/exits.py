"""Exits: hooks where a rank's program ends, and ``abort``, which ends all ranks.

An uncaught exception of one rank ends the job, with its number, its traceback, and an exit code. So does one in a
thread: otherwise the other ranks would wait for the exchanges of that thread. ``sys.exit`` notes its exit code, and
``os._exit`` and ``os.exec`` say that they skip Python's own shutdown. A ``SystemExit`` that a script raises without
``sys.exit`` is not noted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from tfdist.core.log import write_last_message
from tfdist.graph.job import Job
from tfdist.processes.exit_code import note, over
from tfdist.transport.interfaces import World

if TYPE_CHECKING:  # scripts that call ``abort`` may do without TensorFlow
    from tfdist.hooks.patches import Patches
    from tfdist.training.steps import Steps

# All ranks often fail with the same error (a missing file). The higher ranks wait this long for rank 0 to print it.
_LOWER_RANK_FIRST_SECONDS = 1.0


def abort(world: World, message: str, exit_code: int = 1) -> None:
    """Print one message and end all ranks, even if the message cannot be printed.

    Args:
      world: the ranks.
      message: text, printed by the lowest of the ranks that call this at about the same time.
      exit_code: exit code of the whole job; not 0.
    """
    try:
        if world.rank:
            time.sleep(_LOWER_RANK_FIRST_SECONDS)
        # A full disk behind stdout may be the cause of the failure; stderr can go to another disk.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        place = world.recorder.place
        trace = f"\ntfdist: what each rank did last: python -m tfdist trace {place}" if place else ""
        write_last_message(message.rstrip() + trace, forwarded=world.size > 1)
    finally:
        world.abort(exit_code)


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module. In a forked process they do nothing, since that process is not the rank."""
    pid = os.getpid()
    _exceptions(patches, job.world, lambda: patches.active and os.getpid() == pid)
    _exits(patches, lambda: os.getpid() == pid)


def _exceptions(patches: Patches, world: World, active: Callable[[], bool]) -> None:
    """Replace ``sys.excepthook`` and ``threading.excepthook``.

    The previous hook of the main thread is not called, since the job is over.
    """
    previous, previous_of_threads = sys.excepthook, threading.excepthook
    own = previous_of_threads is not threading.__excepthook__

    def end_the_job(
        kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, where: str = ""
    ) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        abort(world, f"tfdist: rank {world.rank} of {world.size} failed{where}:\n{text}")

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if active():
            end_the_job(kind, error, trace)
        else:  # called by a hook around it, or in a child process
            note(1)
            previous(kind, error, trace)

    def uncaught_in_thread(failure: threading.ExceptHookArgs) -> None:
        kind, error, trace, thread = failure
        # After the program has ended, a daemon thread may lose the objects that it uses, which harms no rank.
        over = thread is not None and thread.daemon and not threading.main_thread().is_alive()
        passed_on = active() and not issubclass(kind, SystemExit) and not over
        if own or not passed_on:
            previous_of_threads(failure)
        if passed_on:
            end_the_job(kind, error, trace, f" in {thread.name if thread is not None else 'a thread'}")

    patches.assign(sys, "excepthook", uncaught)
    patches.assign(threading, "excepthook", uncaught_in_thread)


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


def _exits(patches: Patches, is_rank: Callable[[], bool]) -> None:
    """Replace ``sys.exit``, ``os._exit`` and ``os.exec…``, which all call ``execv`` or ``execve``."""

    def leave_program(status: Any = None, /) -> NoReturn:
        raise _Exit(status)

    def leave_at_once(original: Callable[..., Any], status: int) -> Any:
        # The companion reports a rank that exits with an error, and ends the job at once. Child processes are no ranks.
        if is_rank() and status == 0:
            over()
        return original(status)

    def execute(original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if is_rank() and os.access(path, os.X_OK):  # else it fails, and the rank continues
            over()
        return original(path, *args, **kwargs)

    leave_program.__doc__ = sys.exit.__doc__
    patches.assign(sys, "exit", leave_program)
    patches.replace(os, "_exit", leave_at_once)
    for name in ("execv", "execve"):
        patches.replace(os, name, execute)
