"""Flight recorder: what a rank did last with the others, in a file that outlives it, whatever ends it.

Each note is one write, a microsecond, and is there after an exception, a signal or a crash. The file is not mapped into
memory: whoever shortened it (a cleaner of /tmp, a quota) would end the rank by a bus error; a write that fails is left
out. It holds the last so many events, and where the rank's threads were a moment ago. A normal end removes it.
``tfdist.trace`` reads it, also while the rank runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
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
_TIME = struct.Struct("<d")
# Of its descriptor: a script that closes all it does not know would have ours next, were it the lowest.
_DESCRIPTOR_FROM = 800
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
      path: of the file, which must not be there; empty, or on a full or read-only disk: no note is kept.
      place: what to give to ``python -m tfdist trace``.
      head: what the file says of this process, for JSON.
      events: how many it holds.
      detailed: spans are noted.
    """

    def __init__(self, path: str, place: str, head: Mapping[str, Any], events: int = LAST, detailed: bool = False):
        self._detailed = detailed
        self._numbers = itertools.count()
        self._latest = -1
        clock = time.time() - time.perf_counter()
        content = json.dumps({"format": FORMAT, **head, "pid": os.getpid(), "clock": clock})
        self._head = content.encode()[:HEAD_BYTES].ljust(HEAD_BYTES)
        own = _File.new(path, events, 0)
        self._own = () if own is None else (own,)
        self._path, self.place = (path, place) if self._own else ("", "")
        for file in self._own:
            file.write(0, self._head)
        self._files = self._own  # that get the same notes

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
        return lambda kind, what: (span if self._detailed or self._files is not self._own else nothing)(kind, what)

    def _write(self, text: bytes, step: int, size_bytes: int, start: float, end: float) -> int:
        self._latest = number = next(self._numbers)
        record = RECORD.pack(number + 1, start, 0.0, end, step, size_bytes, text)
        for file in self._files:
            file.write(_at(number, file.events), record)
        return number

    def _time(self, entry: int, field: int) -> None:
        now = _TIME.pack(time.perf_counter())
        for file in self._files:
            if file.first <= entry > self._latest - file.events:  # else it was before the file, or others came since
                file.write(_at(entry, file.events) + field, now)

    def begin_timeline(self, path: str, events: int) -> bool:
        file = _File.new(path, events, self._latest + 1)
        if file is None:
            return False
        file.write(0, self._head)
        self._files = (*self._own, file)
        return True

    def end_timeline(self) -> None:
        ended, self._files = self._files[len(self._own) :], self._own
        for file in ended:
            file.flush()

    def look(self) -> None:
        text = stacks().encode(errors="replace")[: STACKS_BYTES - STACKS.size]
        for file in self._own:
            # The head too: it is gone if somebody has emptied the file.
            file.write(0, self._head + STACKS.pack(time.time(), len(text)) + text)

    def flush(self) -> None:
        for file in self._own:
            file.flush()

    def close(self, keep: bool) -> None:
        if self._path and not keep:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
                os.rmdir(os.path.dirname(self._path))  # the last one of a machine


class _File:
    """A file of notes, which may be shortened, deleted or full at any time: then they are lost, and nothing else.

    Attributes:
      events: how many it holds.
      first: the number of the first that it may hold.
    """

    def __init__(self, descriptor: int, events: int, first: int) -> None:
        self._descriptor = descriptor
        self.events, self.first = events, first

    @classmethod
    def new(cls, path: str, events: int, first: int) -> _File | None:
        """One with all its blocks, so that a disk may be full later; None if there can be none."""
        if not path:
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return None
        try:
            os.posix_fallocate(descriptor, 0, _at(events - 1, events) + RECORD.size)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
            return None
        try:
            other = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR_FROM)
        except OSError:  # of a process that may have few
            return cls(descriptor, events, first)
        os.close(descriptor)
        return cls(other, events, first)

    def write(self, at: int, data: bytes) -> None:
        try:  # noqa: SIM105 (contextlib's takes a third of the write's time)
            os.pwrite(self._descriptor, data, at)
        except OSError:
            pass

    def flush(self) -> None:
        """What was written is there for other machines, too."""
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)

    def __del__(self) -> None:
        # Not before: a thread may be about to take note, and the descriptor must not be another file's by then.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


SILENT = Silent()


def _at(number: int, events: int) -> int:
    return HEAD_BYTES + STACKS_BYTES + number % events * RECORD.size


@functools.lru_cache(4096)
def _text(kind: str, owner: str, what: str) -> bytes:
    return SEPARATOR.join((kind, owner, what)).encode()
