"""Moments: points of a training at which other packages' actions are called, in the order in which they were added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Moments:
    """Actions of this process.

    Attributes:
      runs: actions before a session runs a graph that communicates, and before a function is called.
      begins: actions before a session's first training step, when all ranks have the same values of its variables;
        they get the session.
      pauses: actions on all ranks at the beginning and the end of ``fit``, at the end of each epoch, and before
        validation.
    """

    def __init__(self) -> None:
        self.runs: list[Callable[[], None]] = []
        self.begins: list[Callable[[Any], None]] = []
        self.pauses: list[Callable[[], None]] = []
