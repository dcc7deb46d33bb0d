"""Process deadline: the end of this process where a call of MPI's lets no Python thread run, and does not return.

``MPI_Init``, ``MPI_Finalize`` and ``MPI_Abort`` are such calls of mpi4py's; the first two wait for all ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
from collections.abc import Iterator

# More than in other waits: ranks do not start at once, and read their programs first; and Open MPI's end has been seen
# to take more than four seconds where other jobs have the processors.
START_SECONDS, END_SECONDS = 20.0, 10.0
_STDERR = 2  # as the launcher sees it, whatever a script has made of sys.stderr


@contextlib.contextmanager
def process_deadline(seconds: float) -> Iterator[None]:
    """After so many seconds in here the process says in which line it is, and ends with code 1."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def end_by_alarm(seconds: float) -> None:
    """In so many seconds SIGALRM ends this process, also when Python has ended; unless the script uses that signal."""
    if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, seconds)
