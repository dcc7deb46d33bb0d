"""Recorded: the content of a flight recorder's file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfdist.record.flight_recorder import FORMAT, HEAD_BYTES, RECORD, SEPARATOR, STACKS, STACKS_BYTES
from tfdist.record.trace_files import TIMELINE_EVENTS

_MOST_BYTES = HEAD_BYTES + STACKS_BYTES + TIMELINE_EVENTS * RECORD.size
_HEAD = {"rank": int, "size": int, "host": str, "machine": str, "program": str, "pid": int, "clock": float}
_MOST_RANKS = 1_000_000
_MOST_SECONDS = 1e10  # since the epoch, or since a machine's start


class Event(NamedTuple):
    """Something that a rank did. Times are in seconds on its clock.

    Attributes:
      kind: kind of a span; empty: an operation of all ranks of a line.
      owner: name of the collective or the line; the same on all its ranks.
      step: step of the collective, or number of the operation on the line.
      what: description for messages.
      size_bytes: number of bytes that this rank brought; 0: unknown.
      start: when the rank came, or the span began.
      met: when all ranks had come; 0: not yet, or no rank was awaited.
      end: when it ended; 0: not yet.
    """

    kind: str
    owner: str
    step: int
    what: str
    size_bytes: int
    start: float
    met: float
    end: float


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Content of a file.

    Attributes:
      head: facts of the process: ``rank``, ``size``, ``host``, ``machine``, ``pid``. ``clock`` plus an event's time
        gives seconds since the epoch.
      events: the events, in their order.
      complete: True if no event has been overwritten.
      stacks: stacks of the threads.
      looked: when the stacks were recorded, in seconds since the epoch; 0: never.
    """

    head: Mapping[str, Any]
    events: list[Event]
    complete: bool
    stacks: str
    looked: float


def read(path: Path) -> Recorded:
    """Read a file. Control characters in its texts are replaced: they will be shown at a terminal.

    Raises:
      ValueError: the file is not from a flight recorder, or is damaged.
      OSError: it cannot be read.
    """
    other = ValueError(f"{path} is not a file of tfdist's flight recorder, or one of another version, or is damaged")
    if not path.is_file() and path.exists():  # a pipe may have no end
        raise other
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES).ljust(HEAD_BYTES + STACKS_BYTES, b"\0")  # the file may have been truncated
    try:
        head = json.loads(content[:HEAD_BYTES])
        right = head["format"] == FORMAT and all(type(head[name]) is kind for name, kind in _HEAD.items())
        if not right or not 0 <= head["rank"] < head["size"] <= _MOST_RANKS:
            raise other
    except (ValueError, KeyError, TypeError, RecursionError):
        raise other from None
    head = {name: shown(value) if isinstance(value, str) else value for name, value in head.items()}
    looked, length = STACKS.unpack_from(content, HEAD_BYTES)
    begin = HEAD_BYTES + STACKS.size
    records = content[HEAD_BYTES + STACKS_BYTES :]
    whole = len(records) // RECORD.size * RECORD.size
    found = sorted(record for record in RECORD.iter_unpack(records[:whole]) if record[0] > 0)
    if not all(0 <= time <= _MOST_SECONDS for time in (head["clock"], looked, *(t for r in found for t in r[1:4]))):
        raise other
    return Recorded(
        head,
        [_event(record) for record in found],
        not found or found[0][0] == 1,
        shown(content[begin : begin + length].decode(errors="replace")),
        looked,
    )


def _event(record: tuple[Any, ...]) -> Event:
    _, start, met, end, step, size_bytes, text = record
    parts = text.rstrip(b"\0").decode(errors="ignore").split(SEPARATOR, 2)
    kind, owner, what = (*map(shown, parts), "", "")[:3]
    return Event(kind, owner, step, what, size_bytes, start, met, end)


def shown(text: str) -> str:
    """Return a text with a sign in place of each one that a terminal would obey."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text)
