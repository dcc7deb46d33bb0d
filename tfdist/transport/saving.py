"""Saving: carries out this rank's saves together with the other ranks' saves; ``saves`` decides which rank writes."""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tfdist.core.settings import Settings
from tfdist.processes.process_state import GONE
from tfdist.transport.calls import Report, line_number, waiting_for
from tfdist.transport.saves import (
    FAILURE_BYTES,
    MOST_SAVES,
    PASSED_ALL,
    Outcome,
    Phase,
    Reading,
    Save,
    Saves,
    decide,
    decoded,
    encoded,
    in_the_way,
    outcome,
    writing,
)
from tfdist.transport.stall_detection import StallDetector
from tfdist.transport.state_line import RankState, States

_LOOK_SECONDS = 2e-3  # between two readings of the other ranks' states
_LOOK_SHARE = 0.05  # of the time is spent reading, at most: there may be thousands of ranks
_LONGEST_PAUSE_SECONDS = 0.5  # a reading may have taken long only because other programs had the processor
_VISIBLE_SECONDS = 2.0  # until a network file system shows what another machine has written
_NAP_SECONDS = 0.05
_OTHER_THREADS_SECONDS = 10.0  # for another rank's thread to come, whatever that rank's position is
_WITNESSES = ("", ".index", "/saved_model.pb", "/saved_model.pbtxt", "/metadata.json")  # of files, prefixes, folders
_WORDS = 300  # characters of the message of an exception that is too long or cannot be sent


class OwnSave:
    """A save of this rank, from its beginning to its end; see ``saves.PendingSave``.

    Args:
      writes: True if this rank writes.
      end: function to call at the end, with the exception or None.
    """

    def __init__(self, writes: bool, end: Callable[[BaseException | None], None] = lambda error: None) -> None:
        self.writes = writes
        self._end = end

    def done(self) -> None:
        self._end(None)

    def failed(self, error: BaseException) -> None:
        self._end(error)


class Saving:
    """The saves of this rank.

    Args:
      detector: stall detector, which waits for other ranks.
      states: states of the ranks.
      near: the other ranks of this machine.
      settings: settings with the seconds for which a rank may be silent.
    """

    def __init__(self, detector: StallDetector, states: States, near: Sequence[int], settings: Settings) -> None:
        self._detector, self._states, self._settings = detector, states, settings
        self._rank = states.rank
        self._near = sorted(near)
        self._far = [r for r in range(states.size) if r != self._rank and r not in self._near]
        self._told: dict[int, Save] = {}  # published saves by path, the latest at the end
        self._failures: dict[int, bytes] = {}
        self._counts = _Counts()
        self._telling = threading.Lock()
        self._shared: dict[int, bool] = {}  # by device: whether other machines see its files

    def begin(self, path: str, site: str, follows: bool = False) -> OwnSave:
        """See ``interfaces.World.save``."""
        if self._detector.apart:
            return OwnSave(writes=True)
        own = self._next(line_number(path), line_number(site))
        silent_seconds, background = self._settings.stall_seconds, own.position if own.background else None
        observer = _Observer(self._states, silent_seconds, background, lambda: self._detector.report)
        self._tell(own)
        try:
            found, rank = self._decided(own, path, observer, follows)
        except BaseException:
            self._withdraw(own)
            raise
        if found is Outcome.FAILED and rank is not None:
            error = _failure(observer.of(rank).saves, own, rank, path)
            self._fail(own, error)
            raise error
        if found is not Outcome.AWAY or follows:
            self._tell(own._replace(phase=Phase.LEFT))
            return OwnSave(writes=False)

        def end(error: BaseException | None) -> None:
            if error is None:
                self._tell(own._replace(phase=Phase.WRITTEN, stamp=stamp(path) if self._far else 0))
            else:
                self._fail(own, error)

        return OwnSave(True, end)

    def _next(self, path: int, site: int) -> Save:
        position = self._detector.position.of_thread
        number, visit = self._counts.next(position, path, site)
        background = threading.current_thread() is not threading.main_thread()
        before = self._told.get(path)
        return Save(path, site, position, number, visit, background=background, stamp=before.stamp if before else 0)

    def _decided(self, own: Save, path: str, observer: _Observer, follows: bool) -> tuple[Outcome, int | None]:
        """Wait for the outcome; return it with the rank that causes it. If this rank writes, it has published so."""
        near, far = ([r for r in ranks if r < self._rank] for ranks in (self._near, self._far))
        observer.look()
        while True:
            observer.look()
            if own.position < PASSED_ALL:  # else this rank is in step with no lower rank
                found, rank = decide(own, observer.readings, near, far, lambda other: self._here(path, observer, other))
                if rank is not None and found.waits:
                    self._wait(observer, path, rank, lambda of: outcome(own, of).waits)
                    continue
                if rank is not None or follows:
                    return found, rank
            self._tell(own._replace(phase=Phase.WRITES))
            observer.look()
            busy = in_the_way(own, observer.readings, self._near)
            if busy is None:
                return Outcome.AWAY, None
            if busy < self._rank:
                self._tell(own)
            self._wait(observer, path, busy, lambda of: writing(own.path, of))

    def _wait(self, observer: _Observer, path: str, rank: int, waits: Callable[[Reading], bool]) -> None:
        news = _News(observer, lambda: not waits(observer.of(rank)))
        if self._detector.gave_up:
            while not news.Test():
                time.sleep(_LOOK_SECONDS)
        else:
            self._detector.wait_for_news(news, f"the saving of {path} by rank {rank}", rank)

    def _tell(self, save: Save) -> None:
        with self._telling:
            self._told.pop(save.path, None)
            self._told[save.path] = save
            over = [path for path, known in self._told.items() if known.phase not in (Phase.DECIDES, Phase.WRITES)]
            for path in over[: max(0, len(self._told) - MOST_SAVES)]:
                del self._told[path]
            self._publish()

    def _fail(self, save: Save, error: BaseException) -> None:
        failure = _pickled(error)
        with self._telling:
            self._failures.pop(save.path, None)
            self._failures[save.path] = failure
        self._tell(save._replace(phase=Phase.FAILED))

    def _withdraw(self, save: Save) -> None:
        with self._telling:
            self._told.pop(save.path, None)
            self._publish()

    def _publish(self) -> None:
        self._failures = {path: self._failures[path] for path in self._failures if path in self._told}
        self._states.tell_saves(encoded(Saves(tuple(self._told.values()), tuple(self._failures.items()))))

    def _here(self, path: str, observer: _Observer, rank: int) -> bool:
        """Whether this machine sees what a rank of another machine has written; that rank may be writing again."""
        if "://" in path:
            return True
        device = _device(path)
        until = time.monotonic() + _VISIBLE_SECONDS * self._shared.get(device, True)
        while True:
            written = observer.of(rank).saves.of(line_number(path))
            if written is None or not written.stamp:
                return False
            if written.stamp == stamp(path):
                self._shared[device] = True
            if self._shared.get(device, False):
                return True  # (one match is enough for a device: this file may have been changed or removed since)
            if time.monotonic() > until:
                self._shared[device] = False
                return False
            time.sleep(_NAP_SECONDS)
            observer.look()


class _Counts(threading.local):
    """Numbers of saves of this thread at one position."""

    def __init__(self) -> None:
        self._position = -1
        self._saves: Counter[tuple[str, int]] = Counter()

    def next(self, position: int, path: int, site: int) -> tuple[int, int]:
        """Count a save; return the number of saves of this path, and of saves by these lines."""
        if position != self._position:
            self._position = position
            self._saves.clear()
        self._saves.update([("path", path), ("site", site)])
        return self._saves["path", path], self._saves["site", site]


class _Observer:
    """Reads the other ranks' states again and again, and keeps the first of two successive readings of each rank.

    Args:
      states: states of the ranks.
      silent_seconds: seconds after which a rank that does not answer is silent.
      background: position of this thread; None in the main thread. The position of another rank's main thread says
        nothing about its other threads, so for some time it does not count for this thread.
      own: function that returns the report of this rank's calls.
    """

    def __init__(
        self,
        states: States,
        silent_seconds: float,
        background: int | None,
        own: Callable[[], Report],
    ) -> None:
        self._states, self._silent_seconds, self._background, self._own = states, silent_seconds, background, own
        self._begun = time.monotonic()
        self._first: dict[int, tuple[RankState, float]] = {}
        self._waiting: set[int] = set()
        self.readings: dict[int, Reading] = {}

    def of(self, rank: int) -> Reading:
        return self.readings.get(rank, Reading())

    def look(self) -> None:
        states = dict(self._states.read(soon=True))
        waiting = self._waiting_for_this(states)
        if self._background is None:
            # Kept until this save ends: states of other machines come rarely, and seldom all together.
            self._waiting |= waiting
            waiting = self._waiting
        for rank, state in states.items():
            found, saves = self.of(rank), decoded(state.saves)
            first, read = self._first.get(rank, (state, float("inf")))
            if state.asked > read:
                over = first.kind == "ended" or first.process == GONE
                found = Reading(PASSED_ALL if rank in waiting else first.position, over)
            heard = state.asked if self._begun < state.asked < float("inf") else self._begun
            silent = time.monotonic() - heard > self._silent_seconds
            if self._background is not None and time.monotonic() - self._begun < _OTHER_THREADS_SECONDS:
                found = found._replace(position=min(found.position, self._background))
            self.readings[rank] = found._replace(saves=saves, silent=silent)
            if state is not first or read == float("inf"):
                self._first[rank] = state, time.monotonic()

    def _waiting_for_this(self, states: dict[int, RankState]) -> set[int]:
        """Return ranks that wait for this rank in calls of some ranks, which no position counts."""
        fresh = {r: s for r, s in states.items() if r in self._first and s.asked > self._first[r][1]}
        before = {r: self._first[r][0].calls for r in fresh}
        if not any(report.waits for report in before.values()):
            return set()
        own = self._states.rank
        return waiting_for(own, before, {own: self._own(), **{r: s.calls for r, s in fresh.items()}})


class _News:
    """A request that is complete when another rank has published what is awaited."""

    def __init__(self, observer: _Observer, told: Callable[[], bool]) -> None:
        self._observer, self._told = observer, told
        self._next = 0.0

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        start = time.monotonic()
        if start < self._next:
            return False
        self._observer.look()
        end = time.monotonic()
        self._next = end + max(_LOOK_SECONDS, min(_LONGEST_PAUSE_SECONDS, (end - start) / _LOOK_SHARE))
        return self._told()


def stamp(path: str) -> int:
    """Return a number for what is under a path, the same on all machines that see this path; 0: unknown."""
    for witness in _WITNESSES:
        try:
            # (When a file is opened, a network file system asks its server, also for the folder's content.)
            file = os.open(path + witness, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            found = os.fstat(file)
        finally:
            os.close(file)
        if stat.S_ISREG(found.st_mode):
            return line_number(f"{witness} {found.st_size} {found.st_mtime_ns}")
    return 0


def _device(path: str) -> int:
    folder = os.path.dirname(path)
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return os.stat(folder).st_dev


def _pickled(error: BaseException) -> bytes:
    words = str(error)[:_WORDS]
    interrupted = RuntimeError(f"the saving was interrupted by {type(error).__name__} {words}")
    for make in (lambda: error, lambda: type(error)(words), lambda: RuntimeError(f"{type(error).__name__}: {words}")):
        with contextlib.suppress(Exception):
            told = pickle.dumps(make() if isinstance(error, Exception) else interrupted)
            if len(told) <= FAILURE_BYTES and isinstance(pickle.loads(told), Exception):
                return told
    return b""


def _failure(saves: Saves, own: Save, rank: int, path: str) -> Exception:
    """Return the exception of another rank, to raise it here: a script then does the same on both ranks."""
    with contextlib.suppress(Exception):
        error = pickle.loads(dict(saves.failures)[own.path])
        if isinstance(error, Exception):
            return error
    return RuntimeError(f"rank {rank} could not save {path}; its own message says why")
