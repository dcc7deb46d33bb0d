"""Array messages: how the parts of an array become messages between machines, as they are or by a wire."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tfdist.core.wires.format import Wire


class Encoding(Protocol):
    """How the parts of an array become messages.

    Attributes:
      array: [n], in place.
      sent_itemsize: bytes of an element of a message, about.
    """

    array: np.ndarray
    sent_itemsize: int

    def size_bytes(self, elements: int) -> int:
        """Of a message of so many elements."""

    def outgoing(self, part: slice) -> np.ndarray:
        """This rank's contribution to a part, uint8."""

    def contribution(self, area: np.ndarray, elements: int) -> np.ndarray:
        """What has come from another rank."""

    def settled(self, own: slice) -> np.ndarray:
        """A part has been combined: what the others get of it, uint8; this rank then has the same."""

    def incoming(self, part: slice) -> tuple[np.ndarray, Callable[[], None]]:
        """Where what is combined of a part may come, uint8; and what is to be done when it has."""


class Unencoded:
    """See ``Encoding``: views of the array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.sent_itemsize = array.itemsize
        self._bytes = array.view(np.uint8)

    def size_bytes(self, elements: int) -> int:
        return elements * self.sent_itemsize

    def outgoing(self, part: slice) -> np.ndarray:
        return self._bytes[part.start * self.sent_itemsize : part.stop * self.sent_itemsize]

    def contribution(self, area: np.ndarray, elements: int) -> np.ndarray:
        return area.view(self.array.dtype)

    def settled(self, own: slice) -> np.ndarray:
        return self.outgoing(own)

    def incoming(self, part: slice) -> tuple[np.ndarray, Callable[[], None]]:
        return self.outgoing(part), nothing


class Encoded:
    """See ``Encoding``: messages by a wire."""

    sent_itemsize = 1

    def __init__(self, array: np.ndarray, wire: Wire) -> None:
        self.array = array
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
        message = self._wire.encode(self.array, own)
        self._wire.decode(message, self.array[own])
        return message

    def incoming(self, part: slice) -> tuple[np.ndarray, Callable[[], None]]:
        area = np.empty(self.size_bytes(part.stop - part.start), np.uint8)
        return area, functools.partial(self._wire.decode, area, self.array[part])


def nothing() -> None:
    """What is there already needs nothing."""
