"""Compressed text whose lines can be read in any order: gzip in blocks, the format of the tool bgzip (BGZF).

The file is a sequence of gzip members of at most 64 KiB, and each member's header has its length (SAM format
specification, section 4.1). gzip and zcat read such a file as any other. To read a line, only its block is
uncompressed.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import IO

import numpy as np

from nmt.core.errors import InputError

GZIP = b"\x1f\x8b"
_HEADER = struct.Struct("<4sIBBHBBHH")  # magic and flags, time, flags, system, extra field: its length, BC, 2, size
_BEGIN = GZIP + b"\x08\x04"  # deflated, with an extra field
_END = struct.Struct("<II")  # CRC-32 and length of the text
_BLOCK_BYTES = 1 << 14  # of text: a line costs the uncompression of one block, and larger blocks save little


class BlockedText:
    """The text of a file of blocks, for slices.

    Args:
      data: contents of the file.
      path: path of the file, for messages.

    Raises:
      InputError: the file is not compressed in blocks, or is cut off.
    """

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self._data, self._path = data, path
        starts, ends, place, total = [], [], 0, 0
        while place < len(data):
            size = _size_at(data, place, path)
            total += _END.unpack_from(data, place + size - _END.size)[1]
            starts.append(place)
            ends.append(total)
            place += size
        self._starts, self._ends = np.array([*starts, place]), np.array(ends)
        self._last: tuple[int, bytes] = -1, b""  # lines of a text are often read in order

    def __len__(self) -> int:
        """The number of bytes of the text."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, part: slice) -> bytes:
        """The bytes of a slice without a step.

        Raises:
          InputError: a block is damaged.
        """
        start, stop, _ = part.indices(len(self))
        first = int(np.searchsorted(self._ends, start, "right"))
        parts, place = [], start
        for number in range(first, len(self._ends)):
            if place >= stop:
                break
            before = int(self._ends[number - 1]) if number else 0
            parts.append(self._block(number)[place - before : stop - before])
            place = int(self._ends[number])
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        known, text = self._last
        if known == number:
            return text
        try:
            text = zlib.decompress(self._data[self._starts[number] : self._starts[number + 1]], zlib.MAX_WBITS | 16)
        except zlib.error as error:
            raise InputError(f"{self._path} is damaged ({error}): make it again") from error
        self._last = number, text
        return text


def _size_at(data: mmap.mmap, place: int, path: str) -> int:
    """Return the size in bytes of the block at a place of a file."""
    header = data[place : place + _HEADER.size]
    begin, *_, length, first, second, _, size = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    if begin != _BEGIN or (len(header) == _HEADER.size and (length, first, second) != (6, ord("B"), ord("C"))):
        raise InputError(
            f"{path} is compressed by gzip as a whole, so its lines cannot be read in any order. Uncompress it "
            "(gunzip), or compress it with bgzip or nmt.prepare --compress"
        )
    if len(header) < _HEADER.size or place + size + 1 > len(data):
        raise InputError(f"{path} is cut off in the midst of a block: copy or make it again")
    return int(size) + 1


class BlockWriter:
    """Writes text in blocks.

    Args:
      file: binary file to write to; it stays open.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._waiting = file, bytearray()

    def write(self, text: str) -> None:
        """Add text."""
        self._waiting += text.encode("utf-8")
        while len(self._waiting) >= _BLOCK_BYTES:
            self._put(self._waiting[:_BLOCK_BYTES])
            del self._waiting[:_BLOCK_BYTES]

    def close(self) -> None:
        """Write what is left, and the empty block that marks the end."""
        if self._waiting:
            self._put(self._waiting)
        self._put(b"")

    def _put(self, text: bytes | bytearray) -> None:
        packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(text) + packer.flush()
        size = _HEADER.size + len(packed) + _END.size
        self._file.write(_HEADER.pack(_BEGIN, 0, 0, 255, 6, ord("B"), ord("C"), 2, size - 1))
        self._file.write(packed)
        self._file.write(_END.pack(zlib.crc32(text), len(text)))
