"""Recorded: the content of a flight recorder's file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfdist.core.flight_recorder import FORMAT, HEAD_BYTES, RECORD, SEPARATOR, STACKS, STACKS_BYTES


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
    """Read a file.

    Raises:
      ValueError: the file is not from a flight recorder.
    """
    content = path.read_bytes().ljust(HEAD_BYTES + STACKS_BYTES, b"\0")  # the file may have been truncated
    try:
        head = json.loads(content[:HEAD_BYTES])
        if head["format"] != FORMAT:
            raise ValueError(head["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of tfdist's flight recorder, or one of another version") from error
    looked, length = STACKS.unpack_from(content, HEAD_BYTES)
    begin = HEAD_BYTES + STACKS.size
    records = content[HEAD_BYTES + STACKS_BYTES :]
    whole = len(records) // RECORD.size * RECORD.size
    found = sorted(record for record in RECORD.iter_unpack(records[:whole]) if record[0] > 0)
    return Recorded(
        head,
        [_event(record) for record in found],
        not found or found[0][0] == 1,
        content[begin : begin + length].decode(errors="replace"),
        looked,
    )


def _event(record: tuple[Any, ...]) -> Event:
    _, start, met, end, step, size_bytes, text = record
    kind, owner, what = (*text.rstrip(b"\0").decode(errors="ignore").split(SEPARATOR, 2), "", "")[:3]
    return Event(kind, owner, step, what, size_bytes, start, met, end)
