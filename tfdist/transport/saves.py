"""Saves: which rank writes what several ranks save under one path, though no rank knows which others will save it.

A save is no call that all ranks must make: one rank may save alone. Each rank counts the calls of all ranks that it
begins. Programs are the same on all ranks, so this number, the *position*, means the same place between two such calls.
Each rank publishes its position, and what it saves at which position.

Rank 0 writes what it saves. Another rank that saves a path waits until rank 0 has written it at this position, or has
passed: it has begun a later call, waits for this rank, or has ended. In the second case the rank writes that comes
first, and other ranks of its machine that save the path here follow it. So it is on a machine that does not see rank
0's file.

A state is read in one order: the position, then the saves. A rank publishes a save before the next position. So a rank
that has passed, and shows no save of the path, has not saved it here. (Positions only grow, so an old state only makes
a rank wait longer.)
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

PASSED_ALL = 1 << 62  # the position of a rank that is not in step with the others any more
BACKGROUND = -1  # the position of other threads than the main one, whose saves are only counted
_ROUND_BITS = 32  # low bits of a position: more calls than are made between two calls of ``count_anew``
MOST_SAVES = 24  # published by a rank


class Position:
    """Number of calls of all ranks that this rank has begun.

    Args:
      tell: function that publishes the number.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self.now = 0

    def count(self) -> int:
        """Begin the next call, and return its number."""
        return self._come_to(lambda now: now + 1)

    def count_anew(self) -> None:
        """Come to a position that is the same on all ranks at one place, even after unequal numbers of calls."""
        self._come_to(lambda now: ((now >> _ROUND_BITS) + 1) << _ROUND_BITS)

    def pass_all(self) -> None:
        """Leave the order of calls: from now on this rank has no position in common with the other ranks."""
        self._come_to(lambda now: PASSED_ALL)

    def _come_to(self, following: Callable[[int], int]) -> int:
        with self._lock:
            self.now = PASSED_ALL if self.now >= PASSED_ALL else following(self.now)
            self._tell(self.now)
            return self.now


class PendingSave:
    """A save of this rank, from its beginning to its end.

    Args:
      writes: True if this rank is to write, False if another rank has written.
      end: function to call at the end, with the exception or None.
    """

    def __init__(self, writes: bool, end: Callable[[BaseException | None], None] = lambda error: None) -> None:
        self.writes = writes
        self._end = end

    def done(self) -> None:
        """Note that the save is written."""
        self._end(None)

    def failed(self, error: BaseException) -> None:
        """Note that the save has failed."""
        self._end(error)


class Phase(enum.IntEnum):
    """State of a save."""

    DECIDES = 1
    WRITES = 2
    WRITTEN = 3
    LEFT = 4  # another rank has written it
    FAILED = 5

    @property
    def ended(self) -> bool:
        """Whether the save is over."""
        return self > Phase.WRITES


class Save(NamedTuple):
    """One save of a rank, as published.

    Attributes:
      path: number that identifies the path.
      position: position of the rank when the save began; ``BACKGROUND`` in other threads than the main one.
      number: how often the rank has saved the path at this position, this time included.
      phase: state of the save.
      stamp: stamp of the file that this rank last wrote under the path (see ``saving.stamp``); 0: none.
      failure: pickled exception of a save that failed.
    """

    path: int
    position: int
    number: int = 1
    phase: Phase = Phase.DECIDES
    stamp: int = 0
    failure: bytes = b""

    @property
    def key(self) -> tuple[int, bool]:
        """What later saves replace this one: its path; and whether another thread than the main one saves."""
        return self.path, self.position == BACKGROUND

    @property
    def order(self) -> tuple[int, int]:
        """Order among one rank's saves with this key; the same save has the same order on all ranks."""
        return self.position, self.number


class Reading(NamedTuple):
    """State of another rank.

    Attributes:
      position: its position.
      over: True if it has ended; its saves can still be read.
      gone: True if it will not come: it waits for this rank, or nothing has been heard of it for long.
      saves: its last saves, read after the others.
    """

    position: int = -1
    over: bool = False
    gone: bool = False
    saves: tuple[Save, ...] = ()

    def of(self, key: tuple[int, bool]) -> Save | None:
        """Return the last save with a key."""
        return next((save for save in self.saves if save.key == key), None)


class Outcome(enum.Enum):
    """What another rank does, as seen by a rank that saves."""

    OPEN = "it may come"
    AT_WORK = "it decides or writes"
    DONE = "it is written"
    FAILED = "it has failed"
    AWAY = "it does not save this here"

    @property
    def waits(self) -> bool:
        """Whether to wait for that rank."""
        return self in (Outcome.OPEN, Outcome.AT_WORK)


def outcome(own: Save, other: Reading) -> Outcome:
    """Return what another rank does about a save of this rank."""
    found = other.of(own.key)
    if found is not None and found.order >= own.order:
        if found.phase is Phase.FAILED and found.order == own.order:
            return Outcome.FAILED
        if found.phase.ended:
            return Outcome.DONE
        if other.over:
            return Outcome.AWAY
        return Outcome.AT_WORK if _goes_on(found, other) else Outcome.DONE
    if writing(own.path, other):
        return Outcome.AT_WORK
    passed = own.position != BACKGROUND and other.position > own.position
    return Outcome.AWAY if passed or other.over or other.gone else Outcome.OPEN


def writing(path: int, other: Reading) -> bool:
    """Whether another rank writes a path now, and is to be waited for."""
    return any(s.path == path and s.phase is Phase.WRITES and _goes_on(s, other) for s in other.saves)


def _goes_on(save: Save, other: Reading) -> bool:
    """Whether to wait for an unfinished save; not if its rank has ended, or has come to a later call of all ranks."""
    return not other.over and (save.position == BACKGROUND or other.position <= save.position)


def decide(
    own: Save, rank: int, others: Mapping[int, Reading], near: Sequence[int], here: Callable[[], bool]
) -> tuple[Outcome, int | None]:
    """Return what to do now about a save, and the rank that causes this.

    ``AWAY`` and None: this rank writes, if it has published so before. ``DONE``: it returns as if it had written.
    ``FAILED``: it fails, too. Else it waits for that rank, and if that rank is lower, publishes that it does not write.

    A rank publishes that it writes before it reads the others. So of two ranks of a machine at least one sees the
    other, and only one writes.

    Args:
      own: the save.
      rank: this rank.
      others: states of the other ranks.
      near: the other ranks of this machine.
      here: whether this machine sees what rank 0 has written.
    """
    if rank == 0 or own.position == PASSED_ALL:
        busy = next((other for other in near if writing(own.path, others.get(other, Reading()))), None)
        return (Outcome.AWAY if busy is None else Outcome.AT_WORK), busy
    found = outcome(own, others.get(0, Reading()))
    if found is not Outcome.AWAY and (found is not Outcome.DONE or here()):
        return found, 0
    for other in near:
        reading = others.get(other, Reading())
        found, theirs = outcome(own, reading), reading.of(own.key)
        behind = other > rank and theirs is not None and (theirs.order, theirs.phase) == (own.order, Phase.DECIDES)
        if found not in (Outcome.AWAY, Outcome.OPEN) and not behind:
            return found, other
    return Outcome.AWAY, None
