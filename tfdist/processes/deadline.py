"""Process deadline: ends this process if an MPI call, during which no Python thread can run, does not return.

``MPI_Init``, ``MPI_Finalize`` and ``MPI_Abort`` are such calls in mpi4py. The first two wait for all ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
from collections.abc import Iterator

# Longer than other waits: ranks do not start at the same time, and load their programs first. Open MPI's end has taken
# more than four seconds while other jobs used the processors.
START_SECONDS, END_SECONDS = 20.0, 10.0
_STDERR = 2  # the descriptor that the launcher reads, even if a script has replaced sys.stderr


@contextlib.contextmanager
def process_deadline(seconds: float) -> Iterator[None]:
    """Print the process's stacks and end it with code 1 if the block takes longer than ``seconds``."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def end_by_alarm(seconds: float) -> None:
    """Let SIGALRM end this process after ``seconds``, also after Python's end, unless the script uses that signal."""
    if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, seconds)
