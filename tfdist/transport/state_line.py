"""State line: where a rank says what it is about, in memory that others read while they wait for it.

It has four records: what the rank is about, where its program is, in which calls it waits, and what it saves; and a
table of the numbers that it has come to on each line of operations, which is written to in every exchange.
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

LINE_BYTES = 8192
_STATE_BYTES, _PLACE_BYTES, _WAITS_BYTES, _SAVES_BYTES = 640, 384, 256, 2048
_HEAD_BYTES = 8  # checksum and length, uint32 each
SAVES_BYTES = _SAVES_BYTES - _HEAD_BYTES
# Of the table: line, number, and both together, int64 each. The first entry tells whether lines were left out, and the
# rank's position.
_ENTRY = 3
_POSITION = 1
_ENTRIES = (LINE_BYTES - _STATE_BYTES - _PLACE_BYTES - _WAITS_BYTES - _SAVES_BYTES) // (8 * _ENTRY)
_UNKNOWN = "null"


@dataclasses.dataclass(frozen=True)
class RankState:
    """What a rank is about.

    Attributes:
      kind: ``running``; ``waiting`` somewhere; ``background``: waiting, in a thread that does not train; ``moving``:
        for messages of ranks that have been there; ``alone`` with something; ``joined``: trains no more, but takes
        part; ``ended``. At the start, before it can be read: ``absent``; ``gathering``: it hears of the others, and has
        not said that all have come; ``unknown``.
      what: more of it, in words; the beginning, if it is long (see ``clipped``).
      line: of the script that its main thread was in when it last looked; empty: unknown.
      looked: when, in seconds since the epoch by the reader's clock; 0: never.
      host: its machine's name, if there are several.
      answers: its machine does.
      asked: when the reading of all this began, by ``time.monotonic``.
      process: what its process does, see ``process_state``.
      calls: see ``calls``.
      position: to how many of the calls that all ranks make it has come; see ``saves``.
      saves: likewise, what it saves, as ``saves.encoded`` has it.
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
    """What the ranks are about."""

    rank: int
    size: int

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        """Of all other ranks, as far as it is known; does not wait for anybody.

        Args:
          soon: other machines are asked more often: not for long, and by few.
        """

    def tell(self, kind: str, what: str) -> None:
        """What this rank is about, until further notice."""

    def tell_waits(self, waits: Sequence[Call] | None) -> None:
        """In which calls its program is held up; None: nobody is to draw conclusions."""

    def tell_saves(self, saves: bytes) -> None:
        """What it saves; see ``saves``."""

    def tell_position(self, position: int) -> None:
        """To how many of the calls that all ranks make it has come."""

    def enter(self, line: int, number: int, position: int) -> None:
        """It has come to this number of a line of operations, and to this position, if it is not 0."""


def clipped(what: str) -> str:
    """So much of it as a line holds."""
    return what.encode()[: _STATE_BYTES - _HEAD_BYTES - 32].decode(errors="ignore")


class StateLine:
    """One rank's line.

    Each of its records has a checksum: whoever reads it while it is written reads it again.

    Args:
      memory: uint8 [LINE_BYTES], zero at the start.
    """

    def __init__(self, memory: np.ndarray) -> None:
        ends = np.cumsum([_STATE_BYTES, _PLACE_BYTES, _WAITS_BYTES, _SAVES_BYTES])
        self._state, self._place, self._waits, self._saves, table = np.split(memory, ends)
        # Scalars of a memoryview cost a third of NumPy's.
        self._table = table.data.cast("B").cast("q")
        self._entries: dict[int, int] = {}  # where each line stands
        self._used = [0] * _ENTRIES  # when each was written to last
        self._clock = 0
        self._changing = threading.Lock()

    def tell(self, kind: str, what: str) -> None:
        """What this rank is about from now on."""
        _write(self._state, f"{kind}\n{clipped(what)}".encode())

    def tell_line(self, line: str) -> None:
        """Where its program is now."""
        _write(self._place, f"{time.time()}\n{line}".encode())

    def tell_waits(self, waits: Sequence[Call] | None) -> None:
        """In which calls its program is held up; None: nobody is to draw conclusions."""
        text = _UNKNOWN if waits is None else json.dumps([[c.line, c.number, c.ranks] for c in waits])
        _write(self._waits, (text if len(text) <= _WAITS_BYTES - _HEAD_BYTES else _UNKNOWN).encode())

    def tell_saves(self, saves: bytes) -> None:
        """What it saves; at most ``SAVES_BYTES``."""
        _write(self._saves, saves)

    def tell_position(self, position: int) -> None:
        """To how many of the calls that all ranks make it has come."""
        self._table[_POSITION] = position

    def enter(self, line: int, number: int, position: int = 0) -> None:
        """It has come to this number of a line, and to this position, if it is not 0; before it waits there."""
        entry = self._entries.get(line)
        if entry is None:
            with self._changing:
                entry = self._new_entry(line)
        self._clock += 1
        self._used[entry] = self._clock
        at = _ENTRY * entry
        self._table[at + 1] = number
        self._table[at + 2] = line ^ number
        if position:
            self._table[_POSITION] = position

    def _new_entry(self, line: int) -> int:
        if len(self._entries) < _ENTRIES - 1:
            entry = len(self._entries) + 1
        else:
            oldest = min(self._entries, key=lambda other: self._used[self._entries[other]])
            entry = self._entries.pop(oldest)
            self._table[0] = 1
        self._entries[line] = entry
        self._table[_ENTRY * entry] = line
        return entry

    def read(self) -> RankState | None:
        """None: it is being written just now."""
        # In this order: who has ended has entered all that it ever will.
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
        complete, rows = not table[0, 0], table[1:].tolist()
        whole = {line: number for line, number, both in rows if line and line ^ number == both}
        complete = complete and len(whole) == sum(bool(line) for line, *_ in rows)
        if not waits:
            return Report(None if waits is None else (), whole, complete)
        said = json.loads(waits)
        calls = None if said is None else tuple(Call(n, m, r if r is None else tuple(r)) for n, m, r in said)
        return Report(calls, whole, complete)


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
    # (A cut character, where the text was too long, must not hide the rest.)
    return None if content is None else content.decode(errors="ignore")
