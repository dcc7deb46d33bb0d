"""Format: how float32 gradients travel, as ``TFDIST_COMPRESSION`` names it. What a module of this room makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np


class Wire(Protocol):
    """How an array travels between machines, if not as it is. A message may depend on those before.

    Attributes:
      lost: float32 [elements], what rounding has lost: it is added to what is sent next.
    """

    lost: np.ndarray

    def size_bytes(self, elements: int) -> int:
        """Of a message of so many elements."""

    def encode(self, array: np.ndarray, part: slice) -> np.ndarray:
        """A message, uint8, of a part of the array, which stays as it is."""

    def decode(self, message: np.ndarray, out: np.ndarray) -> None:
        """The values of a message into an array of as many elements."""


@dataclasses.dataclass(frozen=True)
class Format:
    """How float32 gradients travel.

    Attributes:
      name: as the setting has it.
      dtype: by name, in which they are handed over, and added where it is not narrower than float32.
      wire: (elements) -> how so many travel between machines, step after step; None: as they are.
    """

    name: str
    dtype: str
    wire: Callable[[int], Wire] | None = None
