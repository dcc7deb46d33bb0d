"""A launcher's process while the job runs: signals to it, lines from it, its exit code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tfdist.launch._rank_prefix import Lines
from tfdist.processes.absent_ranks import AbsentRanks

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what SIGUSR1 means, the program knows
_SECOND_INTERRUPT_SECONDS = 10.0  # interrupts closer than this mean: at once
_KILL_SECONDS = 3.0  # for the launcher to end the ranks after the second
_OUTPUT_SECONDS = 5.0  # for the last lines: a process that outlives the launcher may hold its pipe
_NAP_SECONDS = 0.1
_LOOK_SECONDS = 1.0  # between looks for ranks that wait in vain
_CHILDLESS_SECONDS = 10.0
_ABORT_SECONDS = 20.0  # that an aborted job has for its end
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BLOCK_BYTES = 1 << 16


class Ended(NamedTuple):
    """How a launcher has ended: its exit code, 128 + n if signal n has ended it, and after how long."""

    code: int
    seconds: float


def supervise(
    command: Sequence[str],
    signals: Signals,
    lines: Callable[[], Lines] | None,
    ends_with_children: bool = False,
    lost: bytes = b"",
    aborted: bytes = b"",
) -> Ended:
    """Run a launcher to its end.

    Args:
      command: the launcher and its arguments.
      signals: which go on to it.
      lines: makes what puts the lines of one stream together; None to leave the output alone.
      ends_with_children: it has processes as long as the job has; without them it waits in vain.
      lost: what it says when the job has failed and its exit code may be 0 all the same; empty: there is nothing such.
      aborted: what it says when it begins to end the job, at which it may stay for ever; likewise.

    Raises:
      OSError: it cannot be started.
    """
    start = time.monotonic()
    loss, abort = Watch(lost), Watch(aborted)
    through: dict[int, Lines | Plain] = {} if lines is None else {1: lines(), 2: lines()}
    if lines is None and (lost or aborted):
        through = {2: Plain()}
    pipes = dict.fromkeys(through, subprocess.PIPE)
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        # A killed tfdist-run leaves no job behind. The signal comes once for each thread that it has, and Open MPI's
        # mpirun ends at the second without its ranks: so there is no thread for the streams.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    # In a session of its own, where a terminal's Ctrl-C does not arrive a second time; from there it could not read
    # the terminal either (it would get an error, or be stopped).
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
        stdout=pipes.get(1),
        stderr=pipes.get(2),
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    signals.begin(process)
    with Streams({1: process.stdout, 2: process.stderr}, through, {2: (loss, abort)}) as streams:
        code = _wait(process, streams, abort, ends_with_children)
        signals.finish()
        deadline = time.monotonic() + _OUTPUT_SECONDS
        while streams.open and time.monotonic() < deadline:
            streams.pass_on(_NAP_SECONDS)
    if code == 0 and loss.since is not None:
        sys.stderr.write("tfdist-run: mpirun has lost a machine, and ended with exit code 0: this is 1\n")
        code = 1
    return Ended(code if code >= 0 else 128 - code, time.monotonic() - start)


def _wait(process: subprocess.Popen[Any], streams: Streams, abort: Watch, ends_with_children: bool) -> int:
    """Its exit code; it is made to end when all its own processes have: a machine that does not answer holds it up.

    And when ranks wait in vain; and when it has begun to end the job long ago: Open MPI's may wait for a stopped rank
    that it has killed.
    """
    begun, last, next_look = False, time.monotonic(), 0.0
    absent, terminated = AbsentRanks(process.pid), None
    while True:
        streams.pass_on(_NAP_SECONDS)
        code = process.poll()
        if code is not None:
            return code if terminated is None else 1
        now = time.monotonic()
        ending = terminated or abort.since
        if ending is not None and now - ending > _ABORT_SECONDS:
            sys.stderr.write("tfdist-run: the job was aborted, but mpirun does not end: it is killed\n")
            _kill_session(process.pid)
            process.wait()
            return 1
        if not ends_with_children:
            continue
        if terminated is None and now >= next_look:
            next_look = now + _LOOK_SECONDS
            if words := absent.look():
                sys.stderr.write(f"tfdist-run: {words}: the job is ended; look at what that rank has said above\n")
                process.terminate()
                terminated = now
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                begun, last = True, now
        if begun and now - last > _CHILDLESS_SECONDS:
            sys.stderr.write("tfdist-run: all ranks have ended but mpirun, which waits for a machine that is gone\n")
            process.kill()
            process.wait()
            return 1


class Signals:
    """Hands signals on to the launcher that runs, those too that came before there was one.

    These are SIGINT, SIGTERM, SIGUSR1 and SIGHUP. What a launcher makes of them is its own: MPICH's and Intel's mpirun
    hand SIGINT, SIGTERM and SIGUSR1 to the ranks and end with SIGHUP; Open MPI's hands SIGUSR1 on and ends the ranks
    with the others. A second SIGINT that ends nothing within seconds kills it.

    Attributes:
      ending: the first signal that is to end the job; None if none has come.
    """

    def __init__(self) -> None:
        self.ending: signal.Signals | None = None
        self._process: subprocess.Popen[Any] | None = None
        self._early: list[int] = []
        self._interrupted = float("-inf")
        self._killer: threading.Timer | None = None
        for number in _FORWARDED:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
                signal.signal(number, self._receive)

    def begin(self, process: subprocess.Popen[Any]) -> None:
        """From now on there is one."""
        self._process = process
        while self._early:
            process.send_signal(self._early.pop(0))

    def finish(self) -> None:
        """It has ended."""
        self._process = None
        if self._killer is not None:
            self._killer.cancel()

    def wait(self, seconds: float) -> None:
        """Sleep so long, or until a signal is to end the job."""
        deadline = time.monotonic() + seconds
        while self.ending is None and time.monotonic() < deadline:
            time.sleep(_NAP_SECONDS)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.ending is None and number in _ENDING:
            self.ending = signal.Signals(number)
        if self._process is None:
            if number in _ENDING:  # the other would end a launcher that is not ready for it
                self._early.append(number)
            return
        self._process.send_signal(number)
        if number != signal.SIGINT:
            return
        now = time.monotonic()
        if now - self._interrupted < _SECOND_INTERRUPT_SECONDS and self._killer is None:
            self._killer = threading.Timer(_KILL_SECONDS, _kill_session, [self._process.pid])
            self._killer.daemon = True
            self._killer.start()
        self._interrupted = now


def _kill_session(leader: int) -> None:
    # Open MPI's ranks belong to its mpirun's session and would outlive it; MPICH's notice that it is gone.
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                pid = int(entry.name)
                if os.getsid(pid) == leader:
                    os.kill(pid, signal.SIGKILL)


class Plain:
    """Passes a stream on as it comes; see ``Lines``."""

    def feed(self, data: bytes) -> bytes:
        """The same."""
        return data

    def end(self) -> bytes:
        """Nothing is held back."""
        return b""


class Watch:
    """Looks for words in what streams bring.

    Args:
      words: which; none are never found.

    Attributes:
      since: when they were there first, by ``time.monotonic``; None: never.
    """

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._last = b""
        self.since: float | None = None

    def see(self, data: bytes) -> None:
        """The next bytes; words may begin in some and end in the next."""
        if self._words and self.since is None:
            data = self._last + data
            self.since = time.monotonic() if self._words in data else None
            self._last = data[-len(self._words) :]


class Streams:
    """Pipes from a process, whose bytes go on to this one's own streams.

    Args:
      sources: the pipes, by the number of this process's stream.
      through: what puts their bytes together; those without are left alone.
      watches: what looks at them, likewise.
    """

    def __init__(
        self,
        sources: Mapping[int, Any],
        through: Mapping[int, Lines | Plain],
        watches: Mapping[int, Sequence[Watch]],
    ) -> None:
        self._through, self._watches = through, watches
        self._selector = selectors.DefaultSelector()
        for target in through:
            self._selector.register(sources[target], selectors.EVENT_READ, target)

    def __enter__(self) -> Streams:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the pipes."""
        for key in list(self._selector.get_map().values()):
            self._close(key)
        self._selector.close()

    @property
    def open(self) -> bool:
        """Whether something may still come."""
        return bool(self._selector.get_map())

    def pass_on(self, seconds: float) -> None:
        """Wait so long for the next bytes at most, and hand on what there is."""
        for key, _ in self._selector.select(seconds):
            # A reader that has gone (``| head``), or a full disk, closes the pipe, too, and so reaches the launcher.
            with contextlib.suppress(OSError):
                if data := os.read(key.fd, _BLOCK_BYTES):
                    for watch in self._watches.get(key.data, ()):
                        watch.see(data)
                    _write(key.data, self._through[key.data].feed(data))
                    continue
                _write(key.data, self._through[key.data].end())
            self._close(key)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]
