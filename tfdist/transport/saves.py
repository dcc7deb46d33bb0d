"""Saves: which rank writes what several ranks save under one path, though nobody knows who else will save it.

A save is no call that all ranks must make: one of them may save alone. What the ranks tell of themselves decides. Each
counts the calls that all ranks make; programs are the same on all of them, so that the same number, its *position*,
means the same place between two such calls. And each tells what it saves at which position.

Of those that save one path at one position the lowest writes it. A rank that saves waits for each lower one, until that
has written the path, or is known not to save it here: it has come to a later position, it has ended, or at the same
line of the program it saves another path. No ranks wait for each other: whoever has come to a later position is not
waited for, not even while it writes, and of those at one position each waits for lower ones alone.

What others have told is read twice. That a rank has passed by is taken from the first reading, that it has saved
nothing there from the second: it tells of a save before it comes to the next position. (Positions only grow, and an
aligned word is read whole: an old reading makes a rank wait longer, and nothing else.)
"""

from __future__ import annotations

import enum
import itertools
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tfdist.transport.state_line import SAVES_BYTES

PASSED_ALL = 1 << 62  # the position of a rank that is not in step with the others any more
_STARTED = "_tfdist_position"  # of a thread
_ROUND_BITS = 32  # of a position: more calls than are made between two places where it is counted anew


class Position:
    """That of this rank.

    Args:
      tell: it to the others.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._calls = itertools.count(1)
        self._passed_all = False

    @property
    def now(self) -> int:
        """To how many of the calls that all ranks make it has come."""
        # (Such a counter can be read, and not moved, by its representation alone.)
        return PASSED_ALL if self._passed_all else int(repr(self._calls)[len("count(") : -1]) - 1

    @property
    def of_thread(self) -> int:
        """Where this thread is: the main one, where the rank is; another one, where it was started."""
        found: int | None = getattr(threading.current_thread(), _STARTED, None)
        return self.now if found is None or self._passed_all else found

    def start(self, thread: threading.Thread) -> None:
        """A thread is about to be started."""
        setattr(thread, _STARTED, self.of_thread)

    def next(self) -> int:
        """It comes to another one, and will tell so; threads may come to several at a time."""
        return PASSED_ALL if self._passed_all else next(self._calls)

    def count(self) -> None:
        """It comes to another one, which stands on no line of operations."""
        self._tell(self.next())

    def count_anew(self) -> None:
        """All ranks are at one place, to which they may have come by different numbers of calls."""
        self._calls = itertools.count(((self.now >> _ROUND_BITS) + 1) << _ROUND_BITS)
        self.count()

    def pass_all(self) -> None:
        """From now on it is at none of the others' places."""
        self._passed_all = True
        self._tell(PASSED_ALL)


class PendingSave(Protocol):
    """A save of this rank: whether it ``writes``, or another has."""

    writes: bool

    def done(self) -> None:
        """It is written."""

    def failed(self, error: BaseException) -> None:
        """It is not."""


class Phase(enum.IntEnum):
    """What has become of a save."""

    DECIDES = 1
    WRITES = 2
    WRITTEN = 3
    LEFT = 4  # another rank has written it
    FAILED = 5


class Save(NamedTuple):
    """What a rank tells of one of its saves.

    Attributes:
      path: a number that stands for it.
      site: likewise, for the lines of the program that led to it.
      position: where it was begun; by another thread than the main one, where that was started.
      number: how often the thread has saved the path at this position, with this time.
      visit: likewise, how often it has saved anything by these lines.
      phase: what has become of it.
      background: by another thread than the main one.
      stamp: of what this rank has last written under the path (see ``saving.stamp``); 0: nothing.
    """

    path: int
    site: int
    position: int
    number: int = 1
    visit: int = 1
    phase: Phase = Phase.DECIDES
    background: bool = False
    stamp: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Of all saves of the path, by one rank; the same save has the same on all ranks."""
        return self.position, self.number


class Saves(NamedTuple):
    """All that a rank tells of its saves.

    Attributes:
      latest: the last one of each path; of many paths the last ones.
      failures: what has gone wrong in the last ones that failed, pickled, with their paths.
    """

    latest: tuple[Save, ...] = ()
    failures: tuple[tuple[int, bytes], ...] = ()

    def of(self, path: int) -> Save | None:
        """The last one of a path."""
        return next((save for save in self.latest if save.path == path), None)


_COUNT = struct.Struct("<q")
_ROW = struct.Struct("<4q2I2H")
_FAILURE = struct.Struct("<qI")
MOST_SAVES = 24
_FAILURES_BYTES = SAVES_BYTES - _COUNT.size - MOST_SAVES * _ROW.size
FAILURE_BYTES = _FAILURES_BYTES - _FAILURE.size


def encoded(saves: Saves) -> bytes:
    """As it is told: the last ``MOST_SAVES``, and as many of the last failures as there is room for."""
    latest = saves.latest[-MOST_SAVES:]
    rows = (_ROW.pack(s.path, s.site, s.position, s.stamp, s.number, s.visit, s.phase, s.background) for s in latest)
    failures: list[bytes] = []
    for path, failure in reversed(saves.failures):
        told = _FAILURE.pack(path, len(failure)) + failure
        if sum(map(len, failures)) + len(told) > _FAILURES_BYTES:
            break
        failures.append(told)
    return _COUNT.pack(len(latest)) + b"".join(rows) + b"".join(reversed(failures))


def decoded(told: bytes) -> Saves:
    """What ``encoded`` has made; nothing, if nothing was told."""
    if not told:
        return Saves()
    (rows,) = _COUNT.unpack_from(told)
    at = _COUNT.size + rows * _ROW.size
    found = [
        Save(path, site, position, number, visit, Phase(phase), bool(background), stamp)
        for path, site, position, stamp, number, visit, phase, background in _ROW.iter_unpack(told[_COUNT.size : at])
    ]
    failures = []
    while at < len(told):
        path, size = _FAILURE.unpack_from(told, at)
        failures.append((path, told[at + _FAILURE.size : at + _FAILURE.size + size]))
        at += _FAILURE.size + size
    return Saves(tuple(found), tuple(failures))


class Reading(NamedTuple):
    """What has been read of a rank.

    Attributes:
      position: in the first reading.
      over: likewise, whether it has ended; it may still be told what it has saved.
      silent: likewise, whether nothing has been heard of it for long.
      saves: in the second.
    """

    position: int = -1
    over: bool = False
    silent: bool = False
    saves: Saves = Saves()


class Outcome(enum.Enum):
    """What a lower rank is about, for a rank that saves."""

    OPEN = "it may come"
    AT_WORK = "it decides or writes"
    DONE = "it is written"
    FAILED = "it has failed"
    AWAY = "it does not save this here"

    @property
    def waits(self) -> bool:
        """Whether it is to be waited for."""
        return self in (Outcome.OPEN, Outcome.AT_WORK)


def writing(path: int, other: Reading) -> bool:
    """Whether another rank writes a path just now, and is to be waited for."""
    found = other.saves.of(path)
    return found is not None and found.phase is Phase.WRITES and _goes_on(found, other)


def in_the_way(own: Save, others: Mapping[int, Reading], near: Sequence[int]) -> int | None:
    """A rank of this machine that writes the same path, of which this rank has told that it does, before it looked.

    Of two that tell so one sees the other at least. The higher one steps back, and waits; the lower one waits.
    """
    return next((rank for rank in near if writing(own.path, others.get(rank, Reading()))), None)


def _goes_on(save: Save, other: Reading) -> bool:
    """Whether a save that is not done will be: in the midst of it a rank may have come to a call of all ranks."""
    return not other.over and (save.background or other.position <= save.position)


def outcome(own: Save, other: Reading) -> Outcome:
    """Of a save that is being decided on, with respect to another rank."""
    found = other.saves.of(own.path)
    if found is not None and found.order >= own.order:
        if found.phase is Phase.FAILED and found.order == own.order:
            return Outcome.FAILED
        if found.phase not in (Phase.DECIDES, Phase.WRITES):
            return Outcome.DONE
        if other.over:
            return Outcome.AWAY
        return Outcome.AT_WORK if _goes_on(found, other) else Outcome.DONE
    if writing(own.path, other):
        return Outcome.AT_WORK  # at another position: two do not write one path at a time
    if other.position > own.position or other.over or other.silent:
        return Outcome.AWAY
    by_these_lines = (s for s in other.saves.latest if (s.site, s.position) == (own.site, own.position))
    return Outcome.AWAY if any(s.visit >= own.visit for s in by_these_lines) else Outcome.OPEN


def decide(
    own: Save,
    others: Mapping[int, Reading],
    near: Sequence[int],
    far: Sequence[int],
    here: Callable[[int], bool],
) -> tuple[Outcome, int | None]:
    """What is to be done now about a save, and the rank that it is about.

    ``AWAY`` of nobody: this rank writes. ``DONE``: it returns as if it had. ``FAILED``: it fails likewise.

    Args:
      own: it.
      others: what has been read of the ranks.
      near: the lower ranks of this machine, ascending: what one of them has written is here.
      far: those of other machines, ascending.
      here: whether what one of those has written is seen on this machine, too.
    """
    for rank in near:
        found = outcome(own, others.get(rank, Reading()))
        if found is not Outcome.AWAY:
            return found, rank
    for rank in far:
        found = outcome(own, others.get(rank, Reading()))
        if found is not Outcome.AWAY and (found is not Outcome.DONE or here(rank)):
            return found, rank
    return Outcome.AWAY, None
