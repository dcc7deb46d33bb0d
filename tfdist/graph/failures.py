"""Failures inside collectives: what has gone wrong, to be raised instead of TensorFlow's wrapping of it."""

from __future__ import annotations

import collections

_KEPT = 8  # of several that fail in one run TensorFlow reports one


class Failures:
    """What has gone wrong inside the collectives of a graph, or of all functions, and may not have been raised yet.

    A run may end for another reason than what was noted in it, or end well: what it noted is then nobody's.
    """

    def __init__(self) -> None:
        self._noted: collections.deque[BaseException] = collections.deque(maxlen=_KEPT)

    def note(self, error: BaseException) -> None:
        """Something has gone wrong inside a collective; TensorFlow is about to be told."""
        self._noted.append(error)

    def behind(self, raised: BaseException) -> BaseException | None:
        """What TensorFlow's error wraps; None if it is of something else."""
        told = str(raised)
        found = next((error for error in self._noted if f"{type(error).__name__}: {error}" in told), None)
        if found is not None:
            self._noted.clear()
        return found
