"""Flight recorder: a file with a rank's last operations with other ranks, which survives the rank.

Each event is one write of a microsecond, and survives an exception, a signal or a crash. The file is not mapped into
memory: if somebody shortened it (a cleaner of /tmp, a quota), a bus error would end the rank. A write that fails is
ignored. The file holds the last events, and recent stacks of the rank's threads. A normal end removes it.
``tfdist.record`` reads it, also while the rank runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfdist.core.program_line import stacks
from tfdist.core.system import out_of_reach, reserve

Span = Callable[[str, str], contextlib.AbstractContextManager[None]]

LAST = 1_000  # events that the file of a rank holds by default
FORMAT = "tfdist flight recorder 1"
HEAD_BYTES = 4096
STACKS_BYTES = 16384
STACKS = struct.Struct("<dI")  # time (seconds since the epoch), length of the text
RECORD = struct.Struct("<qdddqq208s")  # number from 1, start, met, end (0: not yet), step, bytes, text
_MET_AT, _END_AT = 16, 24
_TIME = struct.Struct("<d")
SEPARATOR = "\x1f"
_NOTHING = contextlib.nullcontext()


@dataclasses.dataclass
class Entry:
    """An operation under way: its number in the file, when this rank arrived, and when all ranks had."""

    number: int
    arrived: float
    met: float


class FlightRecorder:
    """Records events.

    Args:
      path: path of the file, which must not exist; empty, or on a full or read-only disk: nothing is recorded.
      place: path for ``python -m tfdist trace``.
      head: description of this process in the file; JSON.
      events: number of events that the file holds.
      detailed: True to record spans.

    Attributes:
      place: as given; empty: there is no file.
    """

    def __init__(self, path: str, place: str, head: Mapping[str, Any], events: int = LAST, detailed: bool = False):
        self._detailed = detailed
        self._numbers = itertools.count()
        self._latest = -1
        clock = time.time() - time.perf_counter()
        content = json.dumps({"format": FORMAT, **head, "pid": os.getpid(), "clock": clock})
        self._head = content.encode()[:HEAD_BYTES].ljust(HEAD_BYTES)
        file = _File.new(path, events)
        self._files = () if file is None else (file,)
        self._path, self.place = (path, place) if file else ("", "")
        if file:
            file.write(0, self._head)

    def enter(self, line: str, number: int, place: str, size_bytes: int) -> Entry:
        """Record that this rank arrives at a collective operation, the ``number``-th one of this line of operations.

        Returns:
          The entry, for ``met`` and ``leave``.
        """
        text = f"{SEPARATOR}{line}{SEPARATOR}{place}".encode()
        now = time.perf_counter()
        return Entry(self._write(text, number, size_bytes, now, 0.0), now, now)

    def met(self, entry: Entry) -> None:
        """Record that all ranks have arrived."""
        entry.met = self._time(entry.number, _MET_AT)

    def leave(self, entry: Entry) -> tuple[float, float]:
        """Record that the operation is complete on this rank.

        Returns:
          Seconds that it took, and those of them in which this rank waited for others.
        """
        return self._time(entry.number, _END_AT) - entry.arrived, entry.met - entry.arrived

    def spans(self, owner: str, step: Callable[[], int]) -> Span:
        """Return a context manager ``span(kind, what)``, which records the time of its block if there is a timeline.

        Kinds that follow each other: ``wait`` for peers, ``copy in``, ``reduce``, ``wait for sums``, ``copies`` or
        ``rows`` of the others, and ``copy out``. ``held up`` surrounds them: the computation can do nothing until an
        exchange is complete.

        Args:
          owner: name of a collective operation.
          step: function that returns the number of its step, from 1.
        """
        if not self._detailed:
            return lambda kind, what: _NOTHING

        @contextlib.contextmanager
        def span(kind: str, what: str) -> Iterator[None]:
            start = time.perf_counter()
            try:
                yield
            finally:
                # The step at the end counts: a copy in for the next step may begin before the collective counts it.
                self._write(_text(kind, owner, what), step(), 0, start, time.perf_counter())

        return span

    def _write(self, text: bytes, step: int, size_bytes: int, start: float, end: float) -> int:
        self._latest = number = next(self._numbers)
        record = RECORD.pack(number + 1, start, 0.0, end, step, size_bytes, text)
        for file in self._files:
            file.write(_at(number, file.events), record)
        return number

    def _time(self, entry: int, field: int) -> float:
        now = time.perf_counter()
        for file in self._files:
            if entry > self._latest - file.events:  # else it is overwritten
                file.write(_at(entry, file.events) + field, _TIME.pack(now))
        return now

    def look(self) -> None:
        """Record the stacks of this process's threads."""
        text = stacks().encode(errors="replace")[: STACKS_BYTES - STACKS.size]
        for file in self._files:
            # The head is written again, because somebody may have emptied the file.
            file.write(0, self._head + STACKS.pack(time.time(), len(text)) + text)

    def flush(self) -> None:
        """Write the file out, so that others can read it."""
        for file in self._files:
            file.flush()

    def close(self, keep: bool) -> None:
        """End the recording, and remove the file unless ``keep``."""
        if self._path and not keep:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
                os.rmdir(os.path.dirname(self._path))  # works for the last rank of a machine


class _File:
    """A file of events. If it is shortened, deleted or full, events are lost, and there is no error.

    Attributes:
      events: number of events that it holds.
    """

    def __init__(self, descriptor: int, events: int) -> None:
        self._descriptor = descriptor
        self.events = events

    @classmethod
    def new(cls, path: str, events: int) -> _File | None:
        """Make a file and allocate all its blocks, so that a full disk later does not matter; None if that fails."""
        if not path:
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return None
        try:
            reserve(descriptor, 0, _at(events - 1, events) + RECORD.size)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
            return None
        return cls(out_of_reach(descriptor), events)

    def write(self, at: int, data: bytes) -> None:
        try:  # noqa: SIM105 (contextlib's takes a third of the write's time)
            os.pwrite(self._descriptor, data, at)
        except OSError:
            pass

    def flush(self) -> None:
        """Write the file out, so that other machines can read it, too."""
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)

    def __del__(self) -> None:
        # Not earlier: a thread may be about to write, and the descriptor must not belong to another file then.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


SILENT = FlightRecorder("", "", {})


def _at(number: int, events: int) -> int:
    return HEAD_BYTES + STACKS_BYTES + number % events * RECORD.size


@functools.lru_cache(4096)
def _text(kind: str, owner: str, what: str) -> bytes:
    return SEPARATOR.join((kind, owner, what)).encode()
