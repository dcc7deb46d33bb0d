"""Failures: exceptions inside collectives, to be raised instead of the errors that TensorFlow wraps around them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

_KEPT = 8  # exceptions; if several operations fail in one run, TensorFlow reports one


class Failures:
    """Exceptions inside the collectives of a graph, or of all functions, that may not have been raised yet.

    A run may end without an error, or with another one. The exceptions noted in it are then never raised.
    """

    def __init__(self) -> None:
        self._noted: collections.deque[BaseException] = collections.deque(maxlen=_KEPT)

    def note(self, error: BaseException) -> None:
        """Note an exception inside a collective, before TensorFlow receives it."""
        self._noted.append(error)

    def noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that notes the exceptions of ``call``."""

        def noted(*args: Any) -> Any:
            try:
                return call(*args)
            except BaseException as error:
                self.note(error)
                raise

        return noted

    def behind(self, raised: BaseException) -> BaseException | None:
        """Return the noted exception that TensorFlow's error wraps; None if the error has another cause."""
        told = str(raised)
        found = next((error for error in self._noted if f"{type(error).__name__}: {error}" in told), None)
        if found is not None:
            self._noted.clear()
        return found
