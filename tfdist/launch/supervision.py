"""Supervision of a launcher's process while the job runs: signals to it, lines from it, its exit code."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from tfdist.core import system
from tfdist.launch._rank_prefix import Lines, See
from tfdist.launch.launchers import ABORTED, EXITED, LOST_DAEMON
from tfdist.processes.companion_process import AbsentRanks

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGUSR1 is for the program
_SECOND_INTERRUPT_SECONDS = 10.0  # a second interrupt within this time ends the job at once
_KILL_SECONDS = 3.0  # for the launcher to end the ranks after the second interrupt
_OUTPUT_SECONDS = 5.0  # for the last lines: a process that outlives the launcher may keep its pipe open
_NAP_SECONDS = 0.1
_LOOK_SECONDS = 1.0  # between checks for ranks that wait in vain
_CHILDLESS_SECONDS = 10.0
_ABORT_SECONDS = 20.0  # for an aborted job to end
_QUIET_SECONDS = 600.0  # of an aborted job whose ranks are all elsewhere, so that nobody here sees them end
_BLOCK_BYTES = 1 << 16


class Ended(NamedTuple):
    """How a launcher has ended: its exit code, or 128 + n if signal n has ended it; and the seconds that it ran."""

    code: int
    seconds: float


def supervise(
    command: Sequence[str],
    signals: Signals,
    lines: Callable[[See], Lines] | None,
    open_mpi: bool = False,
    machines: int = 0,
) -> Ended:
    """Run a launcher until it ends.

    Args:
      command: the launcher and its arguments.
      signals: signals that are forwarded to it.
      lines: function that makes the ``Lines`` of one stream; None to leave the output unchanged.
      open_mpi: True for Open MPI's; others have child processes as long as the job runs, and wait in vain without.
      machines: number of machines with ranks; 0: unknown.

    Raises:
      OSError: the launcher cannot be started.
    """
    start = time.monotonic()
    heard = _Heard(open_mpi)
    through = {} if lines is None else {1: lines(_Heard(False).see), 2: lines(heard.see)}
    pipes = dict.fromkeys(through, subprocess.PIPE)
    # In a new session the terminal's Ctrl-C does not arrive a second time. There the launcher cannot read the terminal
    # either: it would get an error, or be stopped.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
        stdout=pipes.get(1),
        stderr=pipes.get(2),
        start_new_session=True,
        # A killed tfdist-run leaves no job behind. The signal comes once for each thread of tfdist-run, and at the
        # second one Open MPI's mpirun ends without its ranks. So no thread reads the streams.
        preexec_fn=functools.partial(system.end_with_parent, signal.SIGTERM),
    )
    signals.begin(process)
    with Streams({1: process.stdout, 2: process.stderr}, through) as streams:
        code = _wait(process, streams, heard, machines)
        signals.finish()
        deadline = time.monotonic() + _OUTPUT_SECONDS
        while streams.open and time.monotonic() < deadline:
            streams.pass_on(_NAP_SECONDS)
    if code == 0 and heard.lost:
        sys.stderr.write("tfdist-run: mpirun has lost a machine, but ended with exit code 0; 1 is used instead\n")
        code = 1
    return Ended(code if code >= 0 else 128 - code, time.monotonic() - start)


def _wait(process: subprocess.Popen[Any], streams: Streams, heard: _Heard, machines: int) -> int:
    """Return the launcher's exit code. End the launcher if all its child processes have ended, or ranks wait in vain.

    Without child processes it waits for a machine that does not answer. It is killed if an aborted job does not end in
    time: Open MPI's mpirun may wait for a stopped rank that it has killed. A rank of a healthy job may print anything.
    So mpirun must have said that the job has ended, or the ranks of this machine must have ended. If none was here,
    nobody may print for long.
    """
    begun, last, next_look = False, time.monotonic(), 0.0
    absent, terminated = AbsentRanks(process.pid, machines=machines), None
    while True:
        streams.pass_on(_NAP_SECONDS)
        code = process.poll()
        if code is not None:
            return code if terminated is None else 1
        now = time.monotonic()
        looks = now >= next_look
        if looks:
            next_look = now + _LOOK_SECONDS
            if _ranks(process.pid) if heard.listens else system.children(process.pid):
                begun, last = True, now
        ended = last if begun else heard.last + _QUIET_SECONDS
        aborted = terminated or min(ended if heard.aborted else now, heard.exited)
        if now - aborted > _ABORT_SECONDS:
            sys.stderr.write("tfdist-run: the job was aborted, but mpirun does not end: it is killed\n")
            system.kill_session(process.pid)
            process.wait()
            return 1
        if heard.listens:
            continue
        if looks and terminated is None and (words := absent.look()):
            sys.stderr.write(f"tfdist-run: {words}: the job is ended; see the output of that rank above\n")
            process.terminate()
            terminated = now
        if begun and now - last > _CHILDLESS_SECONDS:
            sys.stderr.write("tfdist-run: all ranks have ended, but mpirun waits for a machine that is gone\n")
            process.kill()
            process.wait()
            return 1


class _Heard:
    """What was heard: the job has failed (``lost``, ``aborted``); ``exited``: when mpirun said that it has ended it."""

    def __init__(self, listens: bool) -> None:
        self.listens, self.lost, self.aborted, self.last, self.exited = listens, False, False, 0.0, math.inf

    def see(self, owner: int | None, line: bytes) -> None:
        """Take a line and its rank; None: a line of the launcher itself."""
        self.last = time.monotonic()
        if self.listens and owner is None and line.startswith(EXITED):
            self.exited = self.last
        self.lost |= self.listens and owner is None and line == LOST_DAEMON
        self.aborted |= self.listens and owner is not None and line.startswith(ABORTED)


def _ranks(launcher: int) -> list[int]:
    """Return the children of Open MPI's mpirun that are ranks; others reach other machines."""
    return [pid for pid in system.children(launcher) if "\0PMIX_RANK=" in f"\0{system.process_text(pid, 'environ')}"]


class Signals:
    """Forwards signals to the launcher, also those that came before its start.

    These are SIGINT, SIGTERM, SIGUSR1 and SIGHUP. MPICH's mpirun passes SIGINT, SIGTERM and SIGUSR1 to the
    ranks, and ends at SIGHUP. Open MPI's mpirun passes on SIGUSR1, and ends the ranks at the others. If a second SIGINT
    does not end the launcher within seconds, it is killed.

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
        """Forward signals to this launcher from now on."""
        self._process = process
        while self._early:
            process.send_signal(self._early.pop(0))

    def finish(self) -> None:
        """Forward no more signals: the launcher has ended."""
        self._process = None
        if self._killer is not None:
            self._killer.cancel()

    def wait(self, seconds: float) -> None:
        """Sleep for some seconds, or until a signal is to end the job."""
        deadline = time.monotonic() + seconds
        while self.ending is None and time.monotonic() < deadline:
            time.sleep(_NAP_SECONDS)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.ending is None and number in _ENDING:
            self.ending = signal.Signals(number)
        if self._process is None:
            if number in _ENDING:  # SIGUSR1 would end a launcher that does not handle it yet
                self._early.append(number)
            return
        self._process.send_signal(number)
        if number != signal.SIGINT:
            return
        now = time.monotonic()
        if now - self._interrupted < _SECOND_INTERRUPT_SECONDS and self._killer is None:
            # Open MPI's ranks belong to mpirun's session and would outlive mpirun; MPICH's ranks notice its end.
            self._killer = threading.Timer(_KILL_SECONDS, system.kill_session, [self._process.pid])
            self._killer.daemon = True
            self._killer.start()
        self._interrupted = now


class Streams:
    """Pipes from a process, with bytes that are written to this process's streams.

    Args:
      sources: the pipes, by the number of this process's stream.
      through: what assembles the bytes of each stream; other streams are left alone.
    """

    def __init__(self, sources: Mapping[int, Any], through: Mapping[int, Lines]) -> None:
        self._through = through
        self._selector = selectors.DefaultSelector()
        for target in through:
            self._selector.register(sources[target], selectors.EVENT_READ, target)

    def __enter__(self) -> Streams:
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the pipes."""
        for key in list(self._selector.get_map().values()):
            self._close(key)
        self._selector.close()

    @property
    def open(self) -> bool:
        """Whether more bytes may come."""
        return bool(self._selector.get_map())

    def pass_on(self, seconds: float) -> None:
        """Wait for the next bytes, for some seconds at most, and write what has come."""
        for key, _ in self._selector.select(seconds):
            # If the reader is gone (``| head``) or the disk is full, the pipe is closed, too: the launcher notices.
            with contextlib.suppress(OSError):
                if data := os.read(key.fd, _BLOCK_BYTES):
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
