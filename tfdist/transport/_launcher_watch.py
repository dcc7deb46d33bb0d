"""Watch over the launcher: ranks whose launcher has been killed end, as by SIGTERM, instead of working on unseen.

Seen with MPICH 5: a killed ``mpirun`` makes its proxy on each machine kill the ranks; but ranks outlive a killed proxy,
as they do Open MPI's killed ``mpirun``, and nobody can stop or see them any more.
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

    def start(self) -> None:
        """In a thread of its own, which sleeps."""
        threading.Thread(target=self._run, name="tfdist launcher", daemon=True).start()

    def _run(self) -> None:
        connection = select.poll()
        descriptor = launcher_connection()
        if descriptor is not None:
            with contextlib.suppress(OSError):
                # A copy, which stays ours when MPI closes its own; nothing is read from it.
                connection.register(os.dup(descriptor), 0)
        while os.getppid() == self._parent and not connection.poll(1e3 * _LOOK_SECONDS):
            pass
        self.gone = True
        log(
            f"rank {self._rank}: the launcher (mpirun) is gone, and so this rank ends, by SIGTERM; "
            "TFDIST_OUTLIVE_LAUNCHER=1 keeps ranks going"
        )
        for descriptor in (1, 2):
            _silence_if_closed(descriptor)
        os.kill(os.getpid(), signal.SIGTERM)


def _silence_if_closed(descriptor: int) -> None:
    """What the script says while it saves must not fail because the launcher, who read it, is gone."""
    output = select.poll()
    output.register(descriptor, 0)
    if any(events & _CLOSED for _, events in output.poll(0)):
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), descriptor)
