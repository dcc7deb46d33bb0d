"""Saving: carries out this rank's saves together with the other ranks' saves; ``saves`` decides which rank writes."""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tfdist.core.settings import Settings
from tfdist.processes.process_state import GONE
from tfdist.transport.saves import (
    BACKGROUND,
    MOST_SAVES,
    Outcome,
    PendingSave,
    Phase,
    Reading,
    Save,
    decide,
)
from tfdist.transport.stall_detection import StallDetector
from tfdist.transport.state_line import SAVES_BYTES, Held, States, digest

_LOOK_SECONDS = 2e-3  # between two readings of the other ranks' states
_LOOK_SHARE = 0.05  # of the time is spent reading, at most: there may be thousands of ranks
_LONGEST_PAUSE_SECONDS = 0.5  # a reading may have taken long only because other programs had the processor
_VISIBLE_SECONDS = 2.0  # until a network file system shows what another machine has written
_NAP_SECONDS = 0.05
_STUCK_SECONDS = 0.5  # in which a wait does not end: its end may be published late
_OTHER_THREADS_SECONDS = 10.0  # for another rank's thread to come, which no position tells
_WITNESSES = ("", ".index", "/saved_model.pb", "/saved_model.pbtxt", "/metadata.json")  # of files, prefixes, folders
_WORDS = 300  # characters of the message of an exception that is too long or cannot be sent
_FAILURE_BYTES = 600


class Saving:
    """The saves of this rank.

    Args:
      detector: stall detector, which waits for other ranks.
      states: states of the ranks.
      near: the other ranks of this machine.
      settings: settings with ``stall_seconds``.
    """

    def __init__(self, detector: StallDetector, states: States, near: Sequence[int], settings: Settings) -> None:
        self._detector, self._states, self._settings = detector, states, settings
        self._rank = states.rank
        self._near = sorted(near)
        self._spread = len(near) + 1 < states.size
        self._told: dict[tuple[int, bool], Save] = {}  # published saves, the latest at the end
        self._numbers: Counter[tuple[int, int]] = Counter()  # of saves, by path and position
        self._lock = threading.Lock()
        self._shared: dict[int, bool] = {}  # by device: whether other machines see its files

    def begin(self, path: str, follows: bool = False) -> PendingSave:
        """Begin a save that other ranks may make here, too; wait for the rank that writes it. Not collective.

        Args:
          path: absolute path.
          follows: True if this rank never writes the path.

        Raises:
          Exception: the exception of the rank that was to write; PeerError if that rank is missing.
        """
        if self._detector.apart:
            return PendingSave(writes=True)
        own = self._next(digest(path))
        observer = _Observer(self._states, self._settings.stall_seconds, own.position == BACKGROUND)
        self._tell(own)
        try:
            found, rank = self._decided(own, path, observer, follows)
        except BaseException:
            self._tell(own, keep=False)
            raise
        if found is Outcome.FAILED and rank is not None:
            error = _failure(observer.of(rank).of(own.key), rank, path)
            self._fail(own, error)
            raise error
        if found is not Outcome.AWAY or follows:
            self._tell(own._replace(phase=Phase.LEFT))
            return PendingSave(writes=False)

        def end(error: BaseException | None) -> None:
            if error is None:
                self._tell(own._replace(phase=Phase.WRITTEN, stamp=stamp(path) if self._spread else 0))
            else:
                self._fail(own, error)

        return PendingSave(True, end)

    def _next(self, path: int) -> Save:
        in_order = self._detector.callers.in_order
        with self._lock:
            position = self._detector.position.now if in_order else BACKGROUND
            if in_order:
                self._numbers = Counter({k: n for k, n in self._numbers.items() if k[1] in (BACKGROUND, position)})
            self._numbers[path, position] += 1
            own = Save(path, position, self._numbers[path, position])
        before = self._told.get(own.key)
        return own._replace(stamp=before.stamp) if before else own

    def _decided(self, own: Save, path: str, observer: _Observer, follows: bool) -> tuple[Outcome, int | None]:
        """Wait for the outcome; return it with the rank that causes it. If this rank writes, it has published so."""

        def now() -> tuple[Outcome, int | None]:
            return decide(own, self._rank, observer.readings, self._near, lambda: self._here(path, observer))

        while True:
            observer.look()
            found, rank = now()
            if rank is None and own.phase is not Phase.WRITES and not follows:
                own = own._replace(phase=Phase.WRITES)
                self._tell(own)
                continue
            if rank is None or not found.waits:
                return found, rank
            if rank < self._rank and own.phase is Phase.WRITES:
                own = own._replace(phase=Phase.DECIDES)
                self._tell(own)

            def changed(expected: int = rank) -> bool:
                found, rank = now()
                return rank != expected or not found.waits

            news = _News(observer, changed)
            if self._detector.gave_up:
                while not news.Test():
                    time.sleep(_LOOK_SECONDS)
            else:
                self._detector.wait_for_news(news, f"the saving of {path} by rank {rank}", rank)

    def _tell(self, save: Save, keep: bool = True) -> None:
        with self._lock:
            self._told.pop(save.key, None)
            self._told |= {save.key: save} if keep else {}
            ended = [key for key, known in self._told.items() if known.phase.ended]
            for key in ended[: max(0, len(self._told) - MOST_SAVES)]:
                del self._told[key]
            self._states.tell_saves(encoded(list(self._told.values())))

    def _fail(self, save: Save, error: BaseException) -> None:
        self._tell(save._replace(phase=Phase.FAILED, failure=_pickled(error)))

    def _here(self, path: str, observer: _Observer) -> bool:
        """Whether this machine sees what rank 0 has written; that rank may be writing again."""
        if "://" in path or 0 in self._near:
            return True
        device = _device(path)
        until = time.monotonic() + _VISIBLE_SECONDS * self._shared.get(device, True)
        while True:
            stamps = {save.stamp for save in observer.of(0).saves if save.path == digest(path)}
            if not any(stamps):
                return False
            if stamp(path) in stamps:
                self._shared[device] = True
            if self._shared.get(device, False):
                return True  # (one match is enough for a device: this file may have been changed or removed since)
            if time.monotonic() > until:
                self._shared[device] = False
                return False
            time.sleep(_NAP_SECONDS)
            observer.look()


class _Observer:
    """Reads the other ranks' states again and again.

    Args:
      states: states of the ranks.
      silent_seconds: seconds after which a rank that does not answer is gone.
      background: True for a thread that no position of another rank concerns.
    """

    def __init__(self, states: States, silent_seconds: float, background: bool) -> None:
        self._states, self._silent_seconds, self._background = states, silent_seconds, background
        self._begun = time.monotonic()
        self._held: dict[int, tuple[Held | None, float]] = {}  # the call of each rank, and since when it was read
        self.readings: dict[int, Reading] = {}

    def of(self, rank: int) -> Reading:
        return self.readings.get(rank, Reading())

    def look(self) -> None:
        states, now = dict(self._states.read(soon=True)), time.monotonic()
        for rank, state in states.items():
            if rank not in self._held or self._held[rank][0] != state.held:
                self._held[rank] = state.held, state.asked
        # (A call of all ranks is one that has passed, or that this rank has left before the other.)
        held = {
            rank: call
            for rank, (call, since) in self._held.items()
            if call is not None and not call.number and states[rank].asked - since > _STUCK_SECONDS
        }
        stuck = set() if self._background else waiting_for(self._states.rank, held)
        late = self._background and now - self._begun > _OTHER_THREADS_SECONDS
        for rank, state in states.items():
            heard = max(self._begun, state.asked) if state.asked < float("inf") else self._begun
            gone = self.of(rank).gone or late or rank in stuck or now - heard > self._silent_seconds
            over = state.kind == "ended" or state.process == GONE
            self.readings[rank] = Reading(state.position, over, gone, decoded(state.saves))


def waiting_for(rank: int, held: Mapping[int, Held | None]) -> set[int]:
    """Return the ranks that cannot go on before ``rank``: they wait for it, or for a rank that waits for it elsewhere.

    Args:
      rank: a rank that is in no call.
      held: the call in which each other rank has been held up for some time.
    """
    places: dict[int, Held | None] = {rank: None}  # ranks that do not go on, with the call of each
    while True:
        more = {
            other: call
            for other, call in held.items()
            if other not in places
            and call is not None
            and any(place != call for r, place in places.items() if call.ranks is None or r in call.ranks)
        }
        if not more:
            return places.keys() - {rank}
        places |= more


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


def encoded(saves: list[Save]) -> bytes:
    """Encode saves for publication; those that have ended first are left out if there is no room for all."""
    saves = sorted(saves, key=lambda save: not save.phase.ended)
    while len(told := pickle.dumps([(*save[:3], int(save.phase), *save[4:]) for save in saves])) > SAVES_BYTES:
        del saves[0]
    return told


def decoded(told: bytes) -> tuple[Save, ...]:
    """Decode what ``encoded`` has made; empty bytes mean no saves."""
    rows = pickle.loads(told) if told else ()
    return tuple(Save(path, position, number, Phase(phase), *more) for path, position, number, phase, *more in rows)


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
            return digest(f"{witness} {found.st_size} {found.st_mtime_ns}")
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
            if len(told) <= _FAILURE_BYTES and isinstance(pickle.loads(told), Exception):
                return told
    return b""


def _failure(save: Save | None, rank: int, path: str) -> Exception:
    """Return the exception of another rank, to raise it here: a script then does the same on both ranks."""
    with contextlib.suppress(Exception):
        error = pickle.loads(save.failure if save else b"")
        if isinstance(error, Exception):
            return error
    return RuntimeError(f"rank {rank} could not save {path}; its own message says why")
