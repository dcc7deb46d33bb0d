"""Saves: which rank writes what several ranks save under one path, though no rank knows which others will save it.

A save is no call that all ranks must make: one rank may save alone. So the ranks decide by their published states. Each
rank counts the calls that all ranks make. Programs are the same on all ranks, so the same count, the *position*, means
the same place between two such calls. Each rank also publishes what it saves at which position.

Of the ranks that save one path at one position the lowest writes it. A rank that saves waits for each lower rank, until
that rank has written the path or is known not to save it here. This is known when the rank comes to a later position,
ends, or saves another path at the same line of the program. No ranks wait for each other. No rank waits for a rank at
a later position, even while that rank writes; ranks at one position wait for lower ranks only.

Other ranks' states are read twice. The first reading shows that a rank has passed by, the second that it has saved
nothing there. This is right as a rank publishes a save before it comes to the next position. (Positions only grow, and
an aligned word is read whole. So an old reading has one effect only: a rank waits longer.)
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
_STARTED = "_tfdist_position"  # attribute of a thread
_ROUND_BITS = 32  # low bits of a position: more calls than are made between two calls of ``count_anew``


class Position:
    """Position of this rank.

    Args:
      tell: function that publishes the position.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._calls = itertools.count(1)
        self._passed_all = False

    @property
    def now(self) -> int:
        """Number of calls of all ranks to which this rank has come."""
        # (Only its repr gives the value of such a counter without advancing it.)
        return PASSED_ALL if self._passed_all else int(repr(self._calls)[len("count(") : -1]) - 1

    @property
    def of_thread(self) -> int:
        """Position of this thread: the rank's in the main thread, else the position at which the thread was started."""
        found: int | None = getattr(threading.current_thread(), _STARTED, None)
        return self.now if found is None or self._passed_all else found

    def start(self, thread: threading.Thread) -> None:
        """Note the position for a thread that is about to start."""
        setattr(thread, _STARTED, self.of_thread)

    def next(self) -> int:
        """Come to the next position and return it, for the caller to publish; several threads may do so at a time."""
        return PASSED_ALL if self._passed_all else next(self._calls)

    def count(self) -> None:
        """Come to the next position, for a call on no line of operations, and publish it."""
        self._tell(self.next())

    def count_anew(self) -> None:
        """Come to a position that is the same on all ranks at one place, even after unequal numbers of calls."""
        self._calls = itertools.count(((self.now >> _ROUND_BITS) + 1) << _ROUND_BITS)
        self.count()

    def pass_all(self) -> None:
        """Leave the order of calls: from now on this rank has no position in common with the other ranks."""
        self._passed_all = True
        self._tell(PASSED_ALL)


class PendingSave(Protocol):
    """A save of this rank. ``writes`` is True if this rank is to write, False if another rank has written."""

    writes: bool

    def done(self) -> None:
        """Note that the save is written."""

    def failed(self, error: BaseException) -> None:
        """Note that the save has failed."""


class Phase(enum.IntEnum):
    """State of a save."""

    DECIDES = 1
    WRITES = 2
    WRITTEN = 3
    LEFT = 4  # another rank has written it
    FAILED = 5


class Save(NamedTuple):
    """One save of a rank, as published.

    Attributes:
      path: number that identifies the path.
      site: number that identifies the lines of the program that led to the save.
      position: position of the thread when the save began (see ``Position.of_thread``).
      number: how often the thread has saved the path at this position, this time included.
      visit: how often the thread has saved any path by these lines at this position, this time included.
      phase: state of the save.
      background: True if another thread than the main one saves.
      stamp: stamp of the file that this rank last wrote under the path (see ``saving.stamp``); 0: none.
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
        """Order among one rank's saves of the path; the same save has the same order on all ranks."""
        return self.position, self.number


class Saves(NamedTuple):
    """All saves of a rank, as published.

    Attributes:
      latest: the last save of each path; only the last ones if there are many paths.
      failures: (path, pickled exception) of the last saves that failed.
    """

    latest: tuple[Save, ...] = ()
    failures: tuple[tuple[int, bytes], ...] = ()

    def of(self, path: int) -> Save | None:
        """Return the last save of a path."""
        return next((save for save in self.latest if save.path == path), None)


_COUNT = struct.Struct("<q")
_ROW = struct.Struct("<4q2I2H")
_FAILURE = struct.Struct("<qI")
MOST_SAVES = 24
_FAILURES_BYTES = SAVES_BYTES - _COUNT.size - MOST_SAVES * _ROW.size
FAILURE_BYTES = _FAILURES_BYTES - _FAILURE.size


def encoded(saves: Saves) -> bytes:
    """Encode for publication the last ``MOST_SAVES`` saves, and as many of the last failures as fit."""
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
    """Decode what ``encoded`` has made; empty bytes mean no saves."""
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
    """State of another rank, from two readings.

    Attributes:
      position: position in the first reading.
      over: True if the rank had ended in the first reading; its saves can still be read.
      silent: True if nothing has been heard of the rank for long.
      saves: saves in the second reading.
    """

    position: int = -1
    over: bool = False
    silent: bool = False
    saves: Saves = Saves()


class Outcome(enum.Enum):
    """What a lower rank does, as seen by a rank that saves."""

    OPEN = "it may come"
    AT_WORK = "it decides or writes"
    DONE = "it is written"
    FAILED = "it has failed"
    AWAY = "it does not save this here"

    @property
    def waits(self) -> bool:
        """Whether to wait for that rank."""
        return self in (Outcome.OPEN, Outcome.AT_WORK)


def writing(path: int, other: Reading) -> bool:
    """Whether another rank is writing a path now, and is to be waited for."""
    found = other.saves.of(path)
    return found is not None and found.phase is Phase.WRITES and _goes_on(found, other)


def in_the_way(own: Save, others: Mapping[int, Reading], near: Sequence[int]) -> int | None:
    """Return a rank of this machine that writes the same path at the same time; None if there is none.

    Each rank publishes that it writes before it reads the other ranks. So of two ranks at least one sees the other. The
    higher one withdraws and waits; the lower one waits.
    """
    return next((rank for rank in near if writing(own.path, others.get(rank, Reading()))), None)


def _goes_on(save: Save, other: Reading) -> bool:
    """Whether to wait for an unfinished save; not if its rank has ended, or has come to a later call of all ranks."""
    return not other.over and (save.background or other.position <= save.position)


def outcome(own: Save, other: Reading) -> Outcome:
    """Return what another rank does about a save of this rank that is not decided yet."""
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
        return Outcome.AT_WORK  # at another position: two ranks must not write one path at a time
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
    """Return what to do now about a save, and the lower rank that causes this.

    ``AWAY`` and None: this rank writes. ``DONE``: it returns as if it had written. ``FAILED``: it fails, too.

    Args:
      own: the save.
      others: states of the other ranks.
      near: lower ranks of this machine, ascending; what they have written is on this machine.
      far: lower ranks of other machines, ascending.
      here: (rank of ``far``) -> whether this machine sees what that rank has written.
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
