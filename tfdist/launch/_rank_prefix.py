"""Whole lines, each with its rank, out of the marked pieces in which a launcher passes output on.

MPICH's mpirun marks each piece that it happens to read, also in the middle of a line, and lets the pieces of several
ranks alternate. Knows nothing of processes and files.
"""

from __future__ import annotations

import re

_END = re.compile(rb"\r\n|\r|\n")  # \r: of a progress bar's line
_LONGEST_MARK = 40


class Lines:
    """Puts the lines of one stream together.

    Args:
      mark: matches what the launcher writes before a piece; its group is the rank.
      first: the byte that a mark begins with.
    """

    def __init__(self, mark: re.Pattern[bytes], first: bytes) -> None:
        self._mark = mark
        self._first = first
        self._held = b""
        self._owner: int | None = None  # None: the launcher itself speaks
        self._begun: dict[int | None, bytearray] = {}

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns the lines that are now whole. A line begun waits for its end."""
        data = self._held + data
        output = bytearray()
        start = 0
        for match in self._mark.finditer(data):
            output += self._add(data[start : match.start()])
            self._owner = int(match.group(1))
            start = match.end()
        # The rest may end within a mark; marks hold no end of a line.
        cut = data.find(self._first, max(start, len(data) - _LONGEST_MARK, data.rfind(b"\n") + 1))
        cut = len(data) if cut < 0 else cut
        self._held = data[cut:]
        return bytes(output + self._add(data[start:cut]))

    def end(self) -> bytes:
        """The lines that were begun and never ended."""
        output = self._add(self._held)
        self._held = b""
        for owner, text in self._begun.items():
            if text:
                output += _named(owner) + bytes(text) + b"\n"
        self._begun.clear()
        return output

    def _add(self, text: bytes) -> bytes:
        output = bytearray()
        start = 0
        for end in _END.finditer(text):
            begun = self._begun.pop(self._owner, b"")
            output += _named(self._owner) + begun + text[start : end.end()]
            start = end.end()
            if end.group().endswith(b"\n"):
                self._owner = None
        if start < len(text):
            self._begun.setdefault(self._owner, bytearray()).extend(text[start:])
        return bytes(output)


def _named(owner: int | None) -> bytes:
    return b"" if owner is None else b"[%d] " % owner
