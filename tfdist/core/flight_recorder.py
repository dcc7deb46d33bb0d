"""Flight recorder: what a rank did last with the others, in a file that outlives it, whatever ends it.

The file is mapped into memory: to take note costs no system call, and what was noted is there after an exception, a
signal or a crash. It holds the last so many events, and where the rank's threads were a moment ago. A normal end
removes it. ``tfdist.trace`` reads it, also while the rank runs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tfdist.core.program_line import stacks

Span = Callable[[str, str], contextlib.AbstractContextManager[None]]

LAST = 1_000  # events of a rank, if nobody asks for more
FORMAT = "tfdist flight recorder 1"
HEAD_BYTES = 4096
STACKS_BYTES = 16384
STACKS = struct.Struct("<dI")  # when (seconds since the epoch), length of the text
RECORD = struct.Struct("<qdddqq208s")  # number from 1, start, met, end (0: not yet), step, bytes, text
_MET_AT, _END_AT = 16, 24
SEPARATOR = "\x1f"


class Stepping(Protocol):
    """Whose spans they are: a collective."""

    name: str
    step: int


class Recorder(Protocol):
    """Takes note, or does not.

    Attributes:
      place: where the file is; empty: there is none.
    """

    place: str

    def enter(self, line: str, number: int, place: str, size_bytes: int) -> int:
        """This rank arrives where all must come: the ``number``-th time on this line of operations.

        Returns:
          The entry, for ``met`` and ``leave``.
        """

    def met(self, entry: int) -> None:
        """All are there."""

    def leave(self, entry: int) -> None:
        """What all were needed for is done."""

    def spans(self, owner: Stepping) -> Span:
        """``with span(kind, what)``: something that lasts; noted if there is to be a timeline.

        Kinds, one beside the other: ``wait`` for peers, ``copy in``, ``reduce``, ``wait for sums``, ``copies`` or
        ``rows`` of the others, and ``copy out``; around them ``held up``: the computation has nothing to do before an
        exchange is complete.
        """

    def look(self) -> None:
        """Note where the threads of this process are."""

    def begin_timeline(self, path: str, events: int) -> bool:
        """Note everything, spans too, in another file from now on, as well; False: there can be none."""

    def end_timeline(self) -> None:
        """That is over; others may read the other file."""

    def flush(self) -> None:
        """Others may read the file now."""

    def close(self, keep: bool) -> None:
        """Nothing more comes; and nobody needs the file, unless ``keep``."""


class Silent:
    """Takes no note."""

    place = ""
    _nothing = contextlib.nullcontext()

    def enter(self, line: str, number: int, place: str, size_bytes: int) -> int:
        return 0

    def met(self, entry: int) -> None:
        pass

    def leave(self, entry: int) -> None:
        pass

    def spans(self, owner: Stepping) -> Span:
        return self._span

    def _span(self, kind: str, what: str) -> contextlib.AbstractContextManager[None]:
        return self._nothing

    def look(self) -> None:
        pass

    def begin_timeline(self, path: str, events: int) -> bool:
        return False

    def end_timeline(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self, keep: bool) -> None:
        pass


class FlightRecorder:
    """See ``Recorder``.

    Args:
      path: of the file, which must not be there; empty, or on a full or read-only disk: memory that is gone with the
        rank.
      place: what to give to ``python -m tfdist trace``.
      head: what the file says of this process, for JSON.
      events: how many it holds.
      detailed: spans are noted.
    """

    def __init__(self, path: str, place: str, head: Mapping[str, Any], events: int = LAST, detailed: bool = False):
        size = _size(events)
        self._events = events
        self._detailed = detailed
        self._numbers = itertools.count()
        mapped = _mapped(path, size)
        self._memory = mmap.mmap(-1, size) if mapped is None else mapped
        self._path, self.place = ("", "") if mapped is None else (path, place)
        clock = time.time() - time.perf_counter()
        content = json.dumps({"format": FORMAT, **head, "pid": os.getpid(), "clock": clock})
        self._head = content.encode()[:HEAD_BYTES].ljust(HEAD_BYTES)
        self._memory[:HEAD_BYTES] = self._head
        self._files = [(self._memory, events)]  # that get the same notes

    def enter(self, line: str, number: int, place: str, size_bytes: int) -> int:
        text = f"{SEPARATOR}{line}{SEPARATOR}{place}".encode()
        return self._write(text, number, size_bytes, time.perf_counter(), 0.0)

    def met(self, entry: int) -> None:
        self._time(entry, _MET_AT)

    def leave(self, entry: int) -> None:
        self._time(entry, _END_AT)

    def spans(self, owner: Stepping) -> Span:
        @contextlib.contextmanager
        def span(kind: str, what: str) -> Iterator[None]:
            start = time.perf_counter()
            try:
                yield
            finally:
                # A tensor of the next step is copied in while the collective still counts this one.
                self._write(_text(kind, owner.name, what), owner.step, 0, start, time.perf_counter())

        nothing = SILENT.spans(owner)
        return lambda kind, what: (span if self._detailed or len(self._files) > 1 else nothing)(kind, what)

    def _write(self, text: bytes, step: int, size_bytes: int, start: float, end: float) -> int:
        number = next(self._numbers)
        for memory, events in self._files:
            RECORD.pack_into(memory, _at(number, events), number + 1, start, 0.0, end, step, size_bytes, text)
        return number

    def _time(self, entry: int, field: int) -> None:
        for memory, events in self._files:
            at = _at(entry, events)
            if struct.unpack_from("<q", memory, at)[0] == entry + 1:  # else others came since
                struct.pack_into("<d", memory, at + field, time.perf_counter())

    def begin_timeline(self, path: str, events: int) -> bool:
        memory = _mapped(path, _size(events))
        if memory is None:
            return False
        memory[:HEAD_BYTES] = self._head
        self._files = [*self._files[:1], (memory, events)]
        return True

    def end_timeline(self) -> None:
        for memory, _ in self._files[1:]:
            memory.flush()
        self._files = self._files[:1]

    def look(self) -> None:
        text = stacks().encode(errors="replace")[: STACKS_BYTES - STACKS.size]
        struct.pack_into(f"{STACKS.format}{len(text)}s", self._memory, HEAD_BYTES, time.time(), len(text), text)

    def flush(self) -> None:
        self._memory.flush()

    def close(self, keep: bool) -> None:
        # The memory stays: a thread may be about to take note.
        if self._path and not keep:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
                os.rmdir(os.path.dirname(self._path))  # the last one of a machine


SILENT = Silent()


def _size(events: int) -> int:
    return HEAD_BYTES + STACKS_BYTES + events * RECORD.size


def _at(number: int, events: int) -> int:
    return HEAD_BYTES + STACKS_BYTES + number % events * RECORD.size


@functools.lru_cache(4096)
def _text(kind: str, owner: str, what: str) -> bytes:
    return SEPARATOR.join((kind, owner, what)).encode()


def _mapped(path: str, size: int) -> mmap.mmap | None:
    """A new file as memory, with all its blocks: a disk that is full later must not end the rank."""
    if not path:
        return None
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
            return mmap.mmap(file, size)
        except OSError:
            os.unlink(path)
            return None
        finally:
            os.close(file)
    except OSError:
        return None
