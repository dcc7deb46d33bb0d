"""Format: the way in which float32 values travel, by its name in ``TFDIST_COMPRESSION``. Each module defines one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np


class Wire(Protocol):
    """Encoder of one array between machines. A message may depend on earlier messages.

    Attributes:
      lost: float32 [elements], rounding errors of the last messages, which are added to the next values.
    """

    lost: np.ndarray

    def size_bytes(self, elements: int) -> int:
        """Return the size of a message of so many elements."""

    def encode(self, array: np.ndarray, part: slice) -> np.ndarray:
        """Return a message, uint8, with a part of the array. The array is not changed."""

    def decode(self, message: np.ndarray, out: np.ndarray) -> None:
        """Write the values of a message into an array with the same number of elements."""


@dataclasses.dataclass(frozen=True)
class Format:
    """A way in which float32 values travel.

    Attributes:
      name: value of the setting.
      dtype: name of the dtype of the values in an exchange; sums are float32 if it is narrower.
      wire: function (number of elements) -> encoder of an array between machines; None: no encoding.
      of_gradients: True if gradients may travel in it; else only what blocks of local steps have changed.
    """

    name: str
    dtype: str
    wire: Callable[[int], Wire] | None = None
    of_gradients: bool = True
