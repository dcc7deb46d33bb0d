"""Callers: threads of the script that make calls which need the other ranks.

While there are several, the ranks may begin calls in different orders, so that their numbers cannot be compared.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Callers(threading.local):
    """Callers of this rank. ``acting`` holds for one thread only.

    Args:
      known: threads that have made calls.
    """

    def __init__(self, known: set[threading.Thread]) -> None:
        self._known = known
        self._acts = False

    def called(self) -> None:
        """Note that this thread begins a call that needs the other ranks."""
        if not self._acts:
            self._known.add(threading.current_thread())

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Count calls of this thread of TensorFlow as calls of the thread that runs the step."""
        self._acts = True
        try:
            yield
        finally:
            self._acts = False

    @property
    def several(self) -> bool:
        """Whether more than one caller is alive, and may call again."""
        if len(self._known) > 1:
            self._known &= {*threading.enumerate()}
        return len(self._known) > 1

    @property
    def in_order(self) -> bool:
        """Whether this thread is the one whose calls have the same order on all ranks."""
        alive = self._known & {*threading.enumerate()}
        return threading.current_thread() is (alive.pop() if len(alive) == 1 else threading.main_thread())
