"""Layout of a bucket: where its tensors lie in a buffer, and how the buffer is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core.alignment import padded

Piece = Sequence[tuple[int, slice, slice]]


def cut(sizes: Sequence[int], offsets: Sequence[int], own: slice, room: int) -> Sequence[Piece]:
    """Cut a range of a buffer, in which tensors lie at given offsets, into pieces.

    Args:
      sizes: number of elements of each tensor.
      offsets: first element of each tensor in the buffer, ascending.
      own: range of the buffer.
      room: largest number of elements from the first to the last of a piece.

    Returns:
      For each piece its (tensor's number, slice of the tensor, slice of the buffer), in order; no piece is empty.
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
    """Return all tensors, aligned and one after the other, in the form of one piece of ``cut``."""
    places = zip(sizes, offsets(sizes, dtype), strict=False)
    return [(tensor, slice(0, size), slice(at, at + size)) for tensor, (size, at) in enumerate(places)]


def offsets(sizes: Sequence[int], dtype: np.dtype) -> list[int]:
    """Return where each tensor begins and where the last one ends, if they lie aligned and one after the other."""
    return [0, *np.cumsum([padded(size, dtype) for size in sizes]).tolist()]


def gaps(sizes: Sequence[int], dtype: np.dtype) -> list[slice]:
    """Return the gaps between tensors that lie at ``offsets``, and the gap after the last tensor."""
    places = offsets(sizes, dtype)
    ends = [place + size for place, size in zip(places, sizes, strict=False)]
    return [slice(end, start) for end, start in zip(ends, places[1:], strict=True) if start > end]
