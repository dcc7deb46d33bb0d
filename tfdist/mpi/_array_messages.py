"""Array messages: how parts of an array become messages between machines, unchanged or encoded by a wire."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tfdist.core.rounded_wire import Wire


class ArrayMessages:
    """Turns parts of an array into messages, and messages into parts. Here messages are views of the array.

    Args:
      array: [n], combined in place.

    Attributes:
      array: as given.
      sent_itemsize: approximate bytes of an element in a message.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.sent_itemsize = array.itemsize
        self._bytes = array.view(np.uint8)

    def size_bytes(self, elements: int) -> int:
        """Return the size of a message of so many elements."""
        return elements * self.sent_itemsize

    def outgoing(self, part: slice) -> np.ndarray:
        """Return this rank's contribution to a part, uint8."""
        return self._bytes[part.start * self.sent_itemsize : part.stop * self.sent_itemsize]

    def contribution(self, area: np.ndarray, elements: int) -> np.ndarray:
        """Return another rank's contribution, from the memory ``area`` into which it was received."""
        return area.view(self.array.dtype)

    def settled(self, own: slice) -> np.ndarray:
        """Return a combined part for the other ranks, uint8; this rank's array then has the same values."""
        return self.outgoing(own)

    def incoming(self, part: slice) -> tuple[np.ndarray, Callable[[], None]]:
        """Return memory, uint8, into which a combined part is received, and a function to call after that."""
        return self.outgoing(part), nothing


class EncodedMessages(ArrayMessages):
    """Messages that a wire encodes."""

    def __init__(self, array: np.ndarray, wire: Wire) -> None:
        super().__init__(array)
        self.sent_itemsize = 1
        self._wire = wire

    def size_bytes(self, elements: int) -> int:
        return self._wire.size_bytes(elements)

    def outgoing(self, part: slice) -> np.ndarray:
        return self._wire.encode(self.array, part)

    def contribution(self, area: np.ndarray, elements: int) -> np.ndarray:
        values = np.empty(elements, self.array.dtype)
        self._wire.decode(area, values)
        return values

    def settled(self, own: slice) -> np.ndarray:
        message = self.outgoing(own)
        self._wire.decode(message, self.array[own])
        return message

    def incoming(self, part: slice) -> tuple[np.ndarray, Callable[[], None]]:
        area = np.empty(self.size_bytes(part.stop - part.start), np.uint8)
        return area, functools.partial(self._wire.decode, area, self.array[part])


def nothing() -> None:
    """Do nothing: the values are in place already."""
