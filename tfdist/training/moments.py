"""Moments of a training at which other rooms have their part done: what they add is called, in the order of adding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Moments:
    """Those of this process.

    Attributes:
      runs: a session is about to run a graph that communicates, or a function is called.
      begins: a session, which is handed over, is about to train, and all ranks have the same values of its variables.
      pauses: on all ranks where ``fit`` is looked at: at its beginning and its end, at that of each epoch, and before
        its validation.
    """

    def __init__(self) -> None:
        self.runs: list[Callable[[], None]] = []
        self.begins: list[Callable[[Any], None]] = []
        self.pauses: list[Callable[[], None]] = []
