"""State line: memory in which a rank publishes its state, and which other ranks read while they wait for it.

It has four records: the rank's state, the place of its program, the calls in which it waits, and its saves. A table
follows with the number that it has come to on each line of operations; every exchange writes to this table. Without
room for a new line, the one without an exchange for the longest time is left out. A filter tells which were left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tfdist.transport.calls import Call, Report
from tfdist.transport.line_filter import FILTER_BYTES, add

LINE_BYTES = 12288
_STATE_BYTES, _PLACE_BYTES, _WAITS_BYTES, _SAVES_BYTES = 640, 384, 256, 2048
_HEAD_BYTES = 8  # checksum and length, uint32 each
SAVES_BYTES = _SAVES_BYTES - _HEAD_BYTES
# An entry of the table, int64 [2]: line; and number, with some bits of the line. While a line is being replaced, these
# bits differ. The first entry tells the rank's position.
_ENTRY = 2
_CHECK_BITS = 20
_CHECK_MASK = (1 << _CHECK_BITS) - 1
_POSITION = 1
_TABLE_BYTES = LINE_BYTES - _STATE_BYTES - _PLACE_BYTES - _WAITS_BYTES - _SAVES_BYTES - FILTER_BYTES
_ENTRIES = _TABLE_BYTES // (8 * _ENTRY)
_UNKNOWN = "null"


@dataclasses.dataclass(frozen=True)
class RankState:
    """State of one rank, as the other ranks read it.

    Attributes:
      kind: ``running``; ``waiting``; ``background``: waiting, in a thread that does not train; ``moving``: waiting for
        messages of ranks that have arrived. Also ``alone``; ``joined``: has no more data, but takes part; ``ended``. At
        the start, before it can be read: ``absent``; ``gathering``: has not said that all ranks have come; ``unknown``.
      what: details for messages; only the beginning if long (see ``clipped``).
      line: line of the script in which the main thread was last seen; empty: unknown.
      looked: time of that, by ``time.monotonic`` of the reader's machine; 0: never.
      host: name of the rank's machine, if there are several.
      answers: True if its machine answers.
      asked: when this reading began, by ``time.monotonic``.
      process: state of its process, see ``process_state``.
      calls: report of its calls, see ``calls``.
      position: number of calls of all ranks to which it has come, see ``saves``.
      saves: its saves, encoded by ``saves.encoded``.
    """

    kind: str = "running"
    what: str = ""
    line: str = ""
    looked: float = 0.0
    host: str = ""
    answers: bool = True
    asked: float = math.inf
    process: str = ""
    calls: Report = Report()
    position: int = 0
    saves: bytes = b""


class States(Protocol):
    """States of the ranks."""

    rank: int
    size: int

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        """Return the states of all other ranks, as far as known; does not wait for any rank.

        Args:
          soon: True to ask other machines more often; for a short time and few ranks only.
        """

    def tell(self, kind: str, what: str) -> None:
        """Publish what this rank is doing from now on."""

    def tell_waits(self, waits: Sequence[Call] | None) -> None:
        """Publish the calls in which its program is held up; None: nothing can be concluded."""

    def tell_saves(self, saves: bytes) -> None:
        """Publish its saves; see ``saves``."""

    def tell_position(self, position: int) -> None:
        """Publish the number of calls of all ranks to which it has come."""

    def enter(self, line: int, number: int, position: int) -> None:
        """Publish that it has come to this number of a line of operations, and to this position, if not 0."""


def clipped(what: str) -> str:
    """Return the beginning of a description, as much as a line holds."""
    return what.encode()[: _STATE_BYTES - _HEAD_BYTES - 32].decode(errors="ignore")


class StateLine:
    """State line of one rank.

    Each record has a checksum: a reader that finds a record half written reads it again.

    Args:
      memory: uint8 [LINE_BYTES], zero at the start.
    """

    def __init__(self, memory: np.ndarray) -> None:
        ends = np.cumsum([_STATE_BYTES, _PLACE_BYTES, _WAITS_BYTES, _SAVES_BYTES, _TABLE_BYTES])
        self._state, self._place, self._waits, self._saves, table, left_out = np.split(memory, ends)
        # Scalars of a memoryview cost a third of NumPy's.
        self._table = table.data.cast("B").cast("q")
        self._left_out = left_out.data.cast("B")
        self._entries: dict[int, int] = {}  # entry of each line
        self._used = [0] * _ENTRIES  # last write to each entry, by ``_clock``
        self._clock = 0
        self._changing = threading.Lock()

    def tell(self, kind: str, what: str) -> None:
        """Write what this rank is doing from now on."""
        _write(self._state, f"{kind}\n{clipped(what)}".encode())

    def tell_line(self, line: str) -> None:
        """Write where its program is now."""
        _write(self._place, f"{time.monotonic()}\n{line}".encode())

    def tell_waits(self, waits: Sequence[Call] | None) -> None:
        """Write the calls in which its program is held up; None: nothing can be concluded."""
        text = _UNKNOWN if waits is None else json.dumps([[c.line, c.number, c.ranks] for c in waits])
        _write(self._waits, (text if len(text) <= _WAITS_BYTES - _HEAD_BYTES else _UNKNOWN).encode())

    def tell_saves(self, saves: bytes) -> None:
        """Write its saves; at most ``SAVES_BYTES``."""
        _write(self._saves, saves)

    def tell_position(self, position: int) -> None:
        """Write the number of calls of all ranks to which it has come."""
        self._table[_POSITION] = position

    def enter(self, line: int, number: int, position: int = 0) -> None:
        """Write that it has come to this number of a line, and to this position if not 0, before it waits there."""
        entry = self._entries.get(line)
        if entry is None:
            with self._changing:
                entry = self._new_entry(line)
        self._clock += 1
        self._used[entry] = self._clock
        self._table[_ENTRY * entry + 1] = number << _CHECK_BITS | line & _CHECK_MASK
        if position:
            self._table[_POSITION] = position

    def _new_entry(self, line: int) -> int:
        if len(self._entries) < _ENTRIES - 1:
            entry = len(self._entries) + 1
        else:
            oldest = min(self._entries, key=lambda other: self._used[self._entries[other]])
            entry = self._entries.pop(oldest)
            # Before it leaves the table: a reader reads the table first, and finds it in one of them.
            add(self._left_out, oldest)
        self._entries[line] = entry
        self._table[_ENTRY * entry] = line
        return entry

    def read(self) -> RankState | None:
        """Return the state; None if it is being written at this moment."""
        # The state before the table: a rank that has ended enters no more calls.
        state, place, waits = (_text(_read(part)) for part in (self._state, self._place, self._waits))
        position, saves = self._table[_POSITION], _read(self._saves)
        if state is None or place is None or saves is None:
            return None
        kind, _, what = state.partition("\n")
        looked, _, line = place.partition("\n")
        calls = self._report(waits)
        return RankState(kind or "running", what, line, float(looked or 0), calls=calls, position=position, saves=saves)

    def _report(self, waits: str | None) -> Report:
        table = np.frombuffer(self._table, np.int64, _ENTRIES * _ENTRY).copy().reshape(_ENTRIES, _ENTRY)
        left_out = self._left_out.tobytes()
        rows = table[1:][table[1:, 0] != 0].tolist()
        whole = {line: number >> _CHECK_BITS for line, number in rows if (line ^ number) & _CHECK_MASK == 0}
        return Report(_calls(waits), whole, len(whole) == len(rows), left_out if left_out.strip(b"\0") else b"")


def _calls(waits: str | None) -> tuple[Call, ...] | None:
    said = json.loads(waits or "[]") if waits is not None else None
    return None if said is None else tuple(Call(n, m, r if r is None else tuple(r)) for n, m, r in said)


def _write(memory: np.ndarray, content: bytes) -> None:
    content = content[: memory.size - _HEAD_BYTES]
    record = np.frombuffer(content, np.uint8)
    memory[:_HEAD_BYTES].view(np.uint32)[:] = 0, len(content)
    memory[_HEAD_BYTES : _HEAD_BYTES + record.size] = record
    memory[:_HEAD_BYTES].view(np.uint32)[0] = zlib.crc32(content)


def _read(memory: np.ndarray) -> bytes | None:
    copy = memory.tobytes()
    checksum, size = (int(n) for n in np.frombuffer(copy, np.uint32, 2))
    content = copy[_HEAD_BYTES : _HEAD_BYTES + size]
    return content if zlib.crc32(content) == checksum else None


def _text(content: bytes | None) -> str | None:
    # (A character that was cut off at the end of a long text must not hide the rest.)
    return None if content is None else content.decode(errors="ignore")
