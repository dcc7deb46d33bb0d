"""Rank prefix: makes whole lines, each of one rank or of the launcher, from the marked pieces of a launcher's output.

MPICH's mpirun marks each piece that it reads, also in the middle of a line, and pieces of several ranks alternate.
This module works on bytes; it uses no processes or files.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_END = re.compile(rb"\r\n|\r|\n")  # \r ends the line of a progress bar
_LONGEST_MARK = 40
_LONGEST_LINE = 1 << 20  # a longer line is passed on in pieces
See = Callable[[int | None, bytes], None]  # takes a line and its rank; None: the launcher's own line


class Lines:
    """Assembles the lines of one stream.

    Args:
      mark: pattern of the launcher's mark before a piece; its group is the rank.
      first: first byte of a mark.
      named: True to put the rank in front of each line; False to only take the marks off, and to keep no line back.
      see: function that is called with each line.
    """

    def __init__(
        self, mark: re.Pattern[bytes], first: bytes, named: bool = True, see: See = lambda owner, line: None
    ) -> None:
        self._mark = mark
        self._first = first
        self._named = named
        self._see = see
        self._held = b""
        self._owner: int | None = None  # None: output of the launcher itself
        self._begun: dict[int | None, bytearray] = {}

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the lines that are now whole. An incomplete line is kept."""
        data = self._held + data
        output = bytearray()
        start = 0
        for match in self._mark.finditer(data):
            output += self._add(data[start : match.start()])
            self._owner = int(match.group(1))
            start = match.end()
        # The rest may end within a mark; marks contain no end of a line.
        cut = data.find(self._first, max(start, len(data) - _LONGEST_MARK, data.rfind(b"\n") + 1))
        cut = len(data) if cut < 0 else cut
        self._held = data[cut:]
        return bytes(output + self._add(data[start:cut]))

    def end(self) -> bytes:
        """Return the lines that have begun and not ended."""
        output = self._add(self._held)
        self._held = b""
        for owner, text in self._begun.items():
            if text:
                output += self._line(owner, bytes(text)) + b"\n" * self._named
        self._begun.clear()
        return output

    def _add(self, text: bytes) -> bytes:
        output = bytearray(b"" if self._named else text)
        start = 0
        for end in _END.finditer(text):
            begun = self._begun.pop(self._owner, b"")
            output += self._line(self._owner, bytes(begun + text[start : end.end()]))
            start = end.end()
            if end.group().endswith(b"\n"):
                self._owner = None
        if start < len(text):
            begun = self._begun.setdefault(self._owner, bytearray())
            begun.extend(text[start:])
            if len(begun) > _LONGEST_LINE:
                output += self._line(self._owner, bytes(self._begun.pop(self._owner))) + b"\n" * self._named
        return bytes(output)

    def _line(self, owner: int | None, line: bytes) -> bytes:
        self._see(owner, line)
        if not self._named:
            return b""  # it has been passed on
        return line if owner is None else b"[%d] " % owner + line
