"""Layout of a bucket: where its tensors lie in a buffer, and how that is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core.alignment import padded

Piece = Sequence[tuple[int, slice, slice]]


def pack(sizes: Sequence[int], room: int) -> Sequence[Piece]:
    """Lay tensors end to end and cut them into pieces.

    Args:
      sizes: elements of each tensor.
      room: elements of a piece at most.

    Returns:
      For each piece: (tensor, part of it, place in the piece), in order; no piece is empty.
    """
    pieces: list[list[tuple[int, slice, slice]]] = []
    used = room
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            if used == room:
                pieces.append([])
                used = 0
            length = min(size - start, room - used)
            pieces[-1].append((tensor, slice(start, start + length), slice(used, used + length)))
            start += length
            used += length
    return pieces


def cut(sizes: Sequence[int], offsets: Sequence[int], own: slice, room: int) -> Sequence[Piece]:
    """Cut a stretch of a buffer in which tensors lie at given places.

    Args:
      sizes: elements of each tensor.
      offsets: where each begins in the buffer, ascending.
      own: the stretch of the buffer.
      room: elements from the first to the last of a piece at most.

    Returns:
      For each piece: (tensor, part of it, place in the buffer), in order; no piece is empty.
    """
    pieces: list[list[tuple[int, slice, slice]]] = []
    end = own.start
    for tensor, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        start, stop = max(offset, own.start), min(offset + size, own.stop)
        while start < stop:
            if not pieces or start >= end:
                pieces.append([])
                end = start + room
            until = min(stop, end)
            pieces[-1].append((tensor, slice(start - offset, until - offset), slice(start, until)))
            start = until
    return pieces


def whole(sizes: Sequence[int], dtype: np.dtype) -> Piece:
    """All tensors, laid out one after the other, aligned, as a piece of ``pack``."""
    places = zip(sizes, offsets(sizes, dtype), strict=False)
    return [(tensor, slice(0, size), slice(at, at + size)) for tensor, (size, at) in enumerate(places)]


def offsets(sizes: Sequence[int], dtype: np.dtype) -> list[int]:
    """Where tensors begin that are laid out one after the other, aligned; and where the last ends."""
    return [0, *np.cumsum([padded(size, dtype) for size in sizes]).tolist()]


def gaps(sizes: Sequence[int], dtype: np.dtype) -> list[slice]:
    """What lies between tensors that are laid out so, and behind the last."""
    places = offsets(sizes, dtype)
    ends = [place + size for place, size in zip(places, sizes, strict=False)]
    return [slice(end, start) for end, start in zip(ends, places[1:], strict=True) if start > end]
