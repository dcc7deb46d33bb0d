"""Callers: the threads of the script's that do something that needs the other ranks.

What one of them waits for, another may be about to do: while there are several, it is not known that nobody can come.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Callers(threading.local):
    """Those of this rank, as each thread sees them.

    Args:
      known: that have called.
    """

    def __init__(self, known: set[threading.Thread]) -> None:
        self._known = known
        self._acts = False

    def called(self) -> None:
        """This thread begins something that needs the others."""
        if not self._acts:
            self._known.add(threading.current_thread())

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """What this thread, TensorFlow's own, does now, it does for the one that runs the step."""
        self._acts = True
        try:
            yield
        finally:
            self._acts = False

    @property
    def several(self) -> bool:
        """Whether more than one of them may call again."""
        if len(self._known) > 1:
            self._known &= {*threading.enumerate()}
        return len(self._known) > 1
