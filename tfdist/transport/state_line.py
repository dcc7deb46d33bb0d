"""State line: memory in which a rank publishes its state, and which other ranks read while they wait for it.

It has four records: the rank's state, the place of its program, the call that holds its program up, and its saves. The
rank's position follows, which every call of all ranks writes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
import zlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

STATE_BYTES = 3392
_KIND_BYTES, _PLACE_BYTES, _HELD_BYTES, _SAVES_BYTES = 640, 384, 256, 2048
_HEAD_BYTES = 8  # checksum and length, uint32 each
SAVES_BYTES = _SAVES_BYTES - _HEAD_BYTES
_SAVES = slice(_KIND_BYTES + _PLACE_BYTES + _HELD_BYTES, _KIND_BYTES + _PLACE_BYTES + _HELD_BYTES + _SAVES_BYTES)
_DIGEST_BITS = 62  # as a signed number, and never 0
_NOTHING = "null"


def digest(text: str) -> int:
    """Return a number that identifies a text, the same on all ranks."""
    found = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return (found & ((1 << _DIGEST_BITS) - 1)) or 1


class Held(NamedTuple):
    """The call in which a rank's program has been held up for long.

    Attributes:
      place: digest of its place.
      number: number among the calls of all ranks, see ``saves.Position``; 0: it is a call of some ranks.
      ranks: ranks that must come; None: all ranks of the job.
    """

    place: int
    number: int = 0
    ranks: tuple[int, ...] | None = None

    def contradicts(self, other: Held | None) -> bool:
        """Whether no program makes both calls: both are of all ranks, with the same number, at different places."""
        return other is not None and self.number == other.number > 0 and self.place != other.place


@dataclasses.dataclass(frozen=True)
class RankState:
    """State of one rank, as the other ranks read it.

    Attributes:
      kind: ``running``; ``waiting``; ``background``: waiting, in a thread that does not train; ``moving``: waiting for
        messages of ranks that have arrived. Also ``alone``; ``joined``: has no more data, but takes part; ``ended``.
      what: details for messages; only the beginning if long (see ``clipped``).
      line: line of the script in which the main thread was last seen; empty: unknown.
      looked: time of that, by ``time.monotonic`` of the reader's machine; 0: never.
      host: name of the rank's machine, if there are several.
      answers: True if its machine answers.
      asked: when this reading began, by ``time.monotonic``.
      process: state of its process, see ``process_state``.
      held: the one call that holds its program up; None: there is none, or several may go on in any order.
      position: number of calls of all ranks that it has begun, see ``saves``.
      saves: its saves, encoded by ``saving.encoded``.
    """

    kind: str = "running"
    what: str = ""
    line: str = ""
    looked: float = 0.0
    host: str = ""
    answers: bool = True
    asked: float = math.inf
    process: str = ""
    held: Held | None = None
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

    def tell_held(self, held: Held | None) -> None:
        """Publish the call that holds its program up; None: nothing can be concluded."""

    def tell_saves(self, saves: bytes) -> None:
        """Publish its saves; see ``saves``."""

    def tell_position(self, position: int) -> None:
        """Publish the number of calls of all ranks that it has begun."""


class NoOthers:
    """See ``States``. There is one process."""

    rank, size = 0, 1

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        return {}

    def tell(self, kind: str, what: str) -> None:
        pass

    def tell_held(self, held: Held | None) -> None:
        pass

    def tell_saves(self, saves: bytes) -> None:
        pass

    def tell_position(self, position: int) -> None:
        pass


def clipped(what: str) -> str:
    """Return the beginning of a description, as much as a line holds."""
    return what.encode()[: _KIND_BYTES - _HEAD_BYTES - 32].decode(errors="ignore")


class StateLine:
    """State line of one rank.

    Each record has a checksum: a reader that finds a record half written reads it again.

    Args:
      memory: uint8 [STATE_BYTES], zero at the start.
    """

    def __init__(self, memory: np.ndarray) -> None:
        ends = np.cumsum([_KIND_BYTES, _PLACE_BYTES, _HELD_BYTES, _SAVES_BYTES])
        self._state, self._place, self._held, self._saves, numbers = np.split(memory, ends)
        self._numbers = numbers.data.cast("B").cast("q")  # its scalars cost a third of NumPy's

    def tell(self, kind: str, what: str) -> None:
        """Write what this rank is doing from now on."""
        _write(self._state, f"{kind}\n{clipped(what)}".encode())

    def tell_line(self, line: str) -> None:
        """Write where its program is now."""
        _write(self._place, f"{time.monotonic()}\n{line}".encode())

    def tell_held(self, held: Held | None) -> None:
        """Write the call that holds its program up; None: nothing can be concluded."""
        text = json.dumps(held)
        _write(self._held, (text if len(text) <= _HELD_BYTES - _HEAD_BYTES else _NOTHING).encode())

    def tell_saves(self, saves: bytes) -> None:
        """Write its saves; at most ``SAVES_BYTES``."""
        _write(self._saves, saves)

    def tell_position(self, position: int) -> None:
        """Write the number of calls of all ranks that it has begun."""
        self._numbers[0] = position

    def read(self) -> RankState | None:
        """Return the state; None if it is being written at this moment."""
        state, place, held = (_text(_read(part)) for part in (self._state, self._place, self._held))
        position, saves = self._numbers[0], _read(self._saves)
        if state is None or place is None or held is None or saves is None:
            return None
        kind, _, what = state.partition("\n")
        looked, _, line = place.partition("\n")
        call = json.loads(held or _NOTHING)
        return RankState(
            kind or "running",
            what,
            line,
            float(looked or 0),
            held=Held(call[0], call[1], call[2] and tuple(call[2])) if call else None,
            position=position,
            saves=saves,
        )


def snapshot(memory: np.ndarray) -> np.ndarray:
    """Return a copy of some ranks' memory, uint8 [ranks, STATE_BYTES], while they write to it.

    The saves are copied last: a rank that had reached a later position, or its end, has published its earlier saves.
    """
    copy = memory.copy()
    copy[:, _SAVES] = memory[:, _SAVES]
    return copy


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
