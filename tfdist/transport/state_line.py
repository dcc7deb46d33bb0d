"""State line: where a rank says what it is about, in memory that others read while they wait for it."""

from __future__ import annotations

import dataclasses
import time
import zlib

import numpy as np

LINE_BYTES = 1024
_STATE_BYTES = 640  # of the line; then comes where the program is
_HEAD_BYTES = 8  # checksum and length, uint32 each


@dataclasses.dataclass(frozen=True)
class State:
    """What a rank is about.

    Attributes:
      kind: ``running``; ``waiting`` somewhere; ``aside``: waiting by a thread beside those that compute; ``moving``:
        for messages of ranks that have been there; ``alone`` with something; ``joined``: trains no more, but takes
        part; ``ended``. At the start, before it can be read: ``absent``; ``gathering``: it hears of the others, and has
        not said that all have come; ``unknown``.
      what: more of it, in words; the beginning, if it is long (see ``clipped``).
      line: of the script that its main thread was in when it last looked; empty: unknown.
      looked: when, in seconds since the epoch by the reader's clock; 0: never.
      host: its machine's name, if there are several.
      answers: its machine does.
    """

    kind: str = "running"
    what: str = ""
    line: str = ""
    looked: float = 0.0
    host: str = ""
    answers: bool = True


def clipped(what: str) -> str:
    """So much of it as a line holds."""
    return what.encode()[: _STATE_BYTES - _HEAD_BYTES - 32].decode(errors="ignore")


class StateLine:
    """One rank's line.

    Each of its two records has a checksum: whoever reads it while it is written reads it again.

    Args:
      memory: uint8 [LINE_BYTES], zero at the start.
    """

    def __init__(self, memory: np.ndarray) -> None:
        self._state = memory[:_STATE_BYTES]
        self._place = memory[_STATE_BYTES:]

    def tell(self, kind: str, what: str) -> None:
        """What this rank is about from now on."""
        _write(self._state, f"{kind}\n{clipped(what)}")

    def tell_line(self, line: str) -> None:
        """Where its program is now."""
        _write(self._place, f"{time.time()}\n{line}")

    def read(self) -> State | None:
        """None: it is being written just now."""
        state, place = _read(self._state), _read(self._place)
        if state is None or place is None:
            return None
        kind, _, what = state.partition("\n")
        looked, _, line = place.partition("\n")
        return State(kind or "running", what, line, float(looked or 0))


def _write(memory: np.ndarray, text: str) -> None:
    content = text.encode()[: memory.size - _HEAD_BYTES]
    record = np.frombuffer(content, np.uint8)
    memory[:_HEAD_BYTES].view(np.uint32)[:] = 0, len(content)
    memory[_HEAD_BYTES : _HEAD_BYTES + record.size] = record
    memory[:_HEAD_BYTES].view(np.uint32)[0] = zlib.crc32(content)


def _read(memory: np.ndarray) -> str | None:
    copy = memory.tobytes()
    checksum, size = (int(n) for n in np.frombuffer(copy, np.uint32, 2))
    content = copy[_HEAD_BYTES : _HEAD_BYTES + size]
    # (A cut character, where the text was too long, must not hide the rest.)
    return content.decode(errors="ignore") if zlib.crc32(content) == checksum else None
