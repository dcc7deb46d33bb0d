"""Watch over the launcher: ranks whose launcher has been killed end, as by SIGTERM, instead of working on unseen.

Seen with MPICH 5: a killed ``mpirun`` makes its proxy on each machine kill the ranks; but ranks outlive a killed proxy,
and nobody can stop or see them any more. Open MPI 5 itself ends the ranks of a killed ``mpirun``, at their next call of
MPI; those that compute work on until then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

from tfdist.core.environment import launcher_connection
from tfdist.core.log import log

_LOOK_SECONDS = 2.0
_CLOSED = select.POLLHUP | select.POLLERR


class LauncherWatch:
    """Raises SIGTERM in this process when its launcher is gone: who catches it can save what there is.

    Not by ``PR_SET_PDEATHSIG``: without a handler of the script's it would end the process without a word, and a shell
    between launcher and rank lives on.

    Args:
      rank: this process's number.

    Attributes:
      gone: the launcher is.
    """

    def __init__(self, rank: int) -> None:
        self.gone = False
        self._rank = rank
        self._parent = os.getppid()
        self._ends: list[tuple[int, int]] = []  # descriptors, and what of them tells of the launcher's end
        self._watches = False

    def start(self) -> None:
        """In a thread of its own, which sleeps until then."""
        # Told at once, or a script fails that writes to a terminal or pipe of the launcher's in between.
        with contextlib.suppress(OSError, AttributeError):  # Linux before 5.3, or a container that forbids it
            self._ends.append((os.pidfd_open(self._parent), select.POLLIN))
        connection = launcher_connection()
        if connection is not None:
            with contextlib.suppress(OSError):
                # A copy, which stays ours when MPI closes its own; nothing is read from it.
                self._ends.append((os.dup(connection), 0))
        self._watches = True
        threading.Thread(target=self._run, name="tfdist launcher", daemon=True).start()

    def look(self) -> None:
        """The same where no thread runs any more, at the end of Python."""
        if self._watches and not self.gone and self._is_gone(0):
            self._end()

    def _is_gone(self, seconds: float) -> bool:
        ending = select.poll()
        for descriptor, events in self._ends:
            ending.register(descriptor, events)
        return bool(ending.poll(1e3 * seconds)) or os.getppid() != self._parent

    def _run(self) -> None:
        while not self._is_gone(_LOOK_SECONDS):
            pass
        self._end()

    def _end(self) -> None:
        self.gone = True
        _silence_if_closed(1)
        with contextlib.suppress(Exception):  # Python may be about to end
            log(
                f"rank {self._rank}: the launcher (mpirun) is gone, and so this rank ends, by SIGTERM; "
                "TFDIST_OUTLIVE_LAUNCHER=1 keeps ranks going"
            )
        _silence_if_closed(2)
        os.kill(os.getpid(), signal.SIGTERM)
        if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            # (The first process of a namespace, a container's say, does not end by signals that it does not handle.)
            os._exit(128 + signal.SIGTERM)


def _silence_if_closed(descriptor: int) -> None:
    """What the script says while it saves must not fail because the launcher, who read it, is gone."""
    output = select.poll()
    output.register(descriptor, 0)
    if any(events & _CLOSED for _, events in output.poll(0)):
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), descriptor)
