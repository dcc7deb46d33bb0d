"""Launcher watch: ends a rank by SIGTERM when its launcher has been killed, so that it does not continue unnoticed.

Seen with MPICH 5: if ``mpirun`` is killed, its proxy on each machine kills the ranks. But ranks survive a killed proxy,
and then nobody can stop or see them. Open MPI 5 itself ends the ranks of a killed ``mpirun``, at their next MPI call.
Ranks that compute continue until then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

from tfdist.core import system
from tfdist.core.environment import launcher_connection
from tfdist.core.log import log

_LOOK_SECONDS = 2.0
_CLOSED = select.POLLHUP | select.POLLERR


class LauncherWatch:
    """Raises SIGTERM in this process when its launcher is gone. A script that handles the signal can save its state.

    ``PR_SET_PDEATHSIG`` is not used. If the script has no handler, it would end the process without a message. A shell
    between launcher and rank survives, too.

    Args:
      rank: rank of this process.

    Attributes:
      gone: True if the launcher is gone.
    """

    def __init__(self, rank: int) -> None:
        self.gone = False
        self._rank = rank
        self._parent = os.getppid()
        self._ends: dict[int, tuple[int, int]] = {}  # descriptors; their inodes, and the poll events to wait for
        self._watches = False

    def start(self) -> None:
        """Watch in a thread, which sleeps until the launcher is gone."""
        # By events: after a delay, a script's write to the launcher's terminal or pipe might fail first.
        with contextlib.suppress(OSError, AttributeError):  # Linux before 5.3, or a container that forbids it
            self._add(os.pidfd_open(self._parent), select.POLLIN)
        connection = launcher_connection()
        if connection is not None:
            with contextlib.suppress(OSError):
                # The copy stays open when MPI closes its own descriptor. Nothing is read from it.
                self._add(os.dup(connection), 0)
        self._watches = True
        threading.Thread(target=self._run, name="tfdist launcher", daemon=True).start()

    def look(self) -> None:
        """Check once, at the end of Python, when no thread runs any more."""
        if self._watches and not self.gone and self._is_gone(0):
            self._end()

    def _add(self, descriptor: int, events: int) -> None:
        high = system.out_of_reach(descriptor)
        self._ends[high] = os.fstat(high).st_ino, events

    def _ours(self) -> dict[int, int]:
        """Return the descriptors with their events. A script may have closed one, and opened another file there."""
        found: dict[int, int] = {}
        for descriptor, (inode, events) in self._ends.items():
            with contextlib.suppress(OSError):
                found |= {descriptor: events} if os.fstat(descriptor).st_ino == inode else {}
        return found

    def _is_gone(self, seconds: float) -> bool:
        ending = select.poll()
        for descriptor, events in self._ours().items():
            ending.register(descriptor, events)
        seen = dict(ending.poll(1e3 * seconds))
        # A parent that has ended is no parent any more. A connection tells by itself.
        return os.getppid() != self._parent or any(seen.get(descriptor, 0) & _CLOSED for descriptor in self._ours())

    def _run(self) -> None:
        while not self._is_gone(_LOOK_SECONDS):
            pass
        self._end()

    def _end(self) -> None:
        self.gone = True
        _silence_if_closed(1)
        with contextlib.suppress(Exception):  # Python may be about to end
            log(
                f"rank {self._rank}: the launcher (mpirun) is gone, so this rank ends by SIGTERM; "
                "with TFDIST_OUTLIVE_LAUNCHER=1 ranks continue"
            )
        _silence_if_closed(2)
        os.kill(os.getpid(), signal.SIGTERM)
        if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            # (The first process of a namespace, for example of a container, ignores signals without a handler.)
            os._exit(128 + signal.SIGTERM)


def _silence_if_closed(descriptor: int) -> None:
    """Redirect an output to /dev/null if its reader is gone: else a script that prints while it saves would fail."""
    output = select.poll()
    output.register(descriptor, 0)
    if any(events & _CLOSED for _, events in output.poll(0)):
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), descriptor)
