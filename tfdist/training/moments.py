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
      fits: actions on all ranks at the beginning of ``fit``, before rank 0's variables are shared.
      pauses: actions on all ranks at the end of ``fit``, and at the end of each epoch, before its validation.
    """

    def __init__(self) -> None:
        self.runs: list[Callable[[], None]] = []
        self.begins: list[Callable[[Any], None]] = []
        self.fits: list[Callable[[], None]] = []
        self.pauses: list[Callable[[], None]] = []
