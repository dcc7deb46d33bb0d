"""Text files as arrays of lines: only an index is in the process's memory.

The file is memory-mapped: all processes of a host share its pages, and a process decodes only the lines that it reads.
One pass over the bytes finds the lines and counts their tokens; a second pass checks the encoding.

Lines end at "\\n" only and lose one trailing "\\r". Other line breaks of Unicode (U+2028, vertical tab) are ordinary
characters, so that line numbers agree with those of other tools. A byte order mark is not part of the text.
"""

from __future__ import annotations

import functools
import mmap
import os
import zlib
from collections.abc import Iterator

import numpy as np

from nmt.core.errors import InputError

GZIP = b"\x1f\x8b"
LOOKED_AT_BYTES = 1 << 10  # enough to detect UTF-16 by its zero bytes
CHUNK_BYTES = 1 << 22  # bounds the temporary arrays of a pass, which take up to ten times as much
_NEWLINE, _RETURN, _SPACE = b"\n\r "
MARK = b"\xef\xbb\xbf"  # UTF-8's byte order mark, which some editors write at the start of a file
_ICONV = "iconv -f {} -t utf-8"
_CONVERT = f"convert it: {_ICONV}"
_OTHER_BEGINNINGS = {  # first bytes of a file -> its kind, and the remedy
    b"\xff\xfe\0\0": ("UTF-32", _CONVERT.format("utf-32")),
    b"\0\0\xfe\xff": ("UTF-32", _CONVERT.format("utf-32")),
    b"\xff\xfe": ("UTF-16", _CONVERT.format("utf-16")),
    b"\xfe\xff": ("UTF-16", _CONVERT.format("utf-16")),
    GZIP: ("compressed by gzip", "uncompress it: gunzip"),
    b"BZh": ("compressed by bzip2", "uncompress it: bunzip2"),
    b"\xfd7zXZ": ("compressed by xz", "uncompress it: unxz"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "uncompress it: unzstd"),
    b"PK\x03\x04": ("a zip archive, or a document of an office program", "save it as plain text in UTF-8"),
    b"%PDF-": ("PDF", "save it as plain text in UTF-8"),
}


class TextFile:
    """The lines of a UTF-8 text file, numbered from 0.

    The file must not be truncated while this object exists; replacing it by renaming is safe.

    Attributes:
      path: the file's path, for messages.
      lengths: number of tokens of each line (split at spaces), int32 [lines].
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map and check the file.

        Raises:
          InputError: the file is missing, unreadable, empty or not UTF-8 (the message has the line number).
        """
        self.path = os.fspath(path)
        self._bytes = _map(self.path)
        check_kind(self.path, self._bytes[:LOOKED_AT_BYTES])
        self._first = len(MARK) if self._bytes[: len(MARK)] == MARK else 0
        # int64 [lines], offset after the last byte of each line
        self._ends, self.lengths = _index(self._bytes, self._first)
        self._check_encoding()

    def __len__(self) -> int:
        """The number of lines; the last line may lack a line end."""
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        """All lines in order."""
        return map(self.line, range(len(self)))

    @functools.cached_property
    def checksum(self) -> int:
        """CRC-32 of the text's bytes, to compare the texts of ranks or of two starts. It takes a pass over the file."""
        value = 0
        for start in range(0, len(self._bytes), CHUNK_BYTES):
            value = zlib.crc32(self._bytes[start : start + CHUNK_BYTES], value)
        return value

    def line(self, number: int) -> str:
        """Return line `number`, from 0, without its line end.

        Raises:
          IndexError: there is no such line.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: line {number} of {len(self)}")
        line = self._bytes[self._start(number) : int(self._ends[number])]
        return line.removesuffix(b"\r").decode("utf-8")

    def check_words(self) -> None:
        """Check that the file has a word.

        Raises:
          InputError: all lines are empty.
        """
        if not self.lengths.any():
            raise InputError(f"{self.path} has no word in any of its {len(self)} lines: give a file with text")

    def _start(self, number: int) -> int:
        return int(self._ends[number - 1]) + 1 if number else self._first

    def _check_encoding(self) -> None:
        first = 0
        while first < len(self):  # in blocks of whole lines, so that no character is split
            start = self._start(first)
            last = max(first + 1, int(np.searchsorted(self._ends, start + CHUNK_BYTES)))
            try:
                self._bytes[start : int(self._ends[last - 1])].decode("utf-8")
            except UnicodeDecodeError as error:
                line = int(np.searchsorted(self._ends, start + error.start)) + 1
                raise not_utf8(self.path, line, error) from error
            first = last


def check_kind(path: str, beginning: bytes) -> None:
    """Check the first bytes of a file.

    Raises:
      InputError: they are those of another kind of file than text in UTF-8.
    """
    for other, (kind, remedy) in _OTHER_BEGINNINGS.items():
        if beginning.startswith(other):
            raise InputError(f"{path}: is no UTF-8 text, it is {kind}; {remedy}")
    if b"\0" in beginning:
        raise InputError(
            f"{path}: has bytes of zero, which text in UTF-8 does not have; if it is utf-16le (or utf-16be, utf-32le): "
            f"{_ICONV.format('utf-16le')}"
        )


def decoded(path: str, number: int, line: bytes) -> str:
    """Return a line, counted from 1, without its end and without the file's mark.

    Raises:
      InputError: it is not UTF-8.
    """
    line = line.removeprefix(MARK) if number == 1 else line
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(path, number, error) from None


def not_utf8(path: str, line: int, error: UnicodeDecodeError) -> InputError:
    """Return the error that a line, counted from 1, cannot be decoded."""
    return InputError(
        f"{path}, line {line}: not UTF-8 text ({error.reason}); convert it from its encoding, such as latin1 (Western "
        f"Europe), gb18030, shift_jis or utf-16le: {_ICONV.format('latin1')}"
    )


def empty(path: str) -> InputError:
    """Return the error that a file has no line."""
    return InputError(f"{path}: the file is empty; it needs at least one line")


def unreadable(path: str, error: Exception) -> InputError:
    """Return the error that a file cannot be read."""
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError(f"{path}: cannot be read ({reason}); check the path and its permissions")


def check_regular(path: str) -> None:
    """Check that a file, if it exists, can be read more than once. Opening a pipe would wait for its writer.

    Raises:
      InputError: it is a pipe or a device.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise InputError(f"{path}: is not a regular file, but it is read more than once; save it as a file")


def _map(path: str) -> mmap.mmap:
    check_regular(path)
    try:
        with open(path, "rb") as file:
            if file.read(len(MARK) + 1) in (b"", MARK):
                raise empty(path)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: the file cannot be mapped
        raise unreadable(path, error) from error


def _index(data: mmap.mmap, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset after each line's last byte, int64 [lines], and each line's number of tokens, int32 [lines].

    The text begins with byte `first`. A token begins at a byte that is no separator after a separator. The running sum
    of tokens up to each line end gives the lines' token counts as differences.
    """
    ends: list[np.ndarray] = []
    totals: list[np.ndarray] = []  # tokens from the start of the file to each line end
    total = 0
    after_separator = True
    for start in range(first, len(data), CHUNK_BYTES):
        content = np.frombuffer(data[start : start + CHUNK_BYTES + 1], dtype=np.uint8)
        chunk, following = content[:CHUNK_BYTES], content[1:]
        newline = chunk == _NEWLINE
        separator = newline | (chunk == _SPACE)
        # One "\r" at the end of a line is no text. The end of the file also ends a line.
        at_end = np.ones(len(chunk), dtype=bool)
        at_end[: len(following)] = following == _NEWLINE
        separator |= (chunk == _RETURN) & at_end
        begins = ~separator
        begins[1:] &= separator[:-1]
        begins[0] &= after_separator
        after_separator = bool(separator[-1])
        running = np.cumsum(begins, dtype=np.int64) + total
        total = int(running[-1])
        in_chunk = np.flatnonzero(newline)
        ends.append(in_chunk + start)
        totals.append(running[in_chunk])
    if data[len(data) - 1 : len(data)] != b"\n":
        ends.append(np.array([len(data)]))
        totals.append(np.array([total]))
    return np.concatenate(ends), np.diff(np.concatenate(totals), prepend=0).astype(np.int32)
