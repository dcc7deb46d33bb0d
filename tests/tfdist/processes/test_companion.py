"""The companion of a rank: what it reports of the rank's end, to whom, and which processes it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.launch import ROOT
from tfdist.core.environment import Launch
from tfdist.processes import companion, companion_process

SLEEPS = ["env", "--default-signal", "sleep", "60"]  # the tests' parent may ignore SIGINT


class Watched:
    """A process with a companion, after all ranks have begun.

    Args:
      command: command line of the process.
      tmp_path: folder for the companion's messages.
    """

    def __init__(self, command: list[str], tmp_path: Path) -> None:
        self.launcher, connection = socket.socketpair()
        self.process: Any = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._said = tmp_path / "said"
        # (It kills other writers to its output pipes, which it inherits from the rank in a job; here it has none.)
        program = [sys.executable, "-I", "-S", str(companion_process.__file__), "1", "2"]
        with self._said.open("w") as said:
            companion: Any = subprocess.Popen(
                [*program, str(self.process.pid), str(connection.fileno()), "60"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[connection.fileno()],
                bufsize=0,
            )
        connection.close()
        self.companion = companion
        companion.wait(30)  # it has gone into the background
        companion.stdin.write(companion_process.BEGUN)
        self.launcher.settimeout(30)

    def told(self) -> str:
        """Return what the launcher receives until the connection closes."""
        found = b""
        while part := self.launcher.recv(1000):
            found += part
        return found.decode()

    @property
    def said(self) -> str:
        return self._said.read_text()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[[list[str]], Watched]]:
    with contextlib.ExitStack() as stack:

        def start(command: list[str]) -> Watched:
            one = Watched(command, tmp_path)
            stack.callback(one.process.wait)
            stack.callback(one.process.kill)
            stack.callback(one.launcher.close)
            return one

        yield start


def test_one_that_is_killed(watched: Callable[[list[str]], Watched]) -> None:
    one = watched(SLEEPS)
    one.process.kill()
    assert one.told() == "cmd=abort exitcode=137\n"
    assert f"rank 1 of 2 (process {one.process.pid} on {os.uname().nodename}) was ended by SIGKILL" in one.said
    assert "memory" in one.said


@pytest.mark.parametrize(("code", "told"), [(0, 1), (3, 3)])
def test_one_that_leaves(watched: Callable[[list[str]], Watched], code: int, told: int) -> None:
    one = watched([sys.executable, "-c", f"import os, time; time.sleep(1); os._exit({code})"])
    assert one.told() == f"cmd=abort exitcode={told}\n"
    assert f"has left with exit code {code}, without coming to its program's end" in one.said


def test_one_that_ends_as_it_should(watched: Callable[[list[str]], Watched]) -> None:
    one = watched(SLEEPS)
    one.companion.stdin.write(companion_process.ENDED)
    assert one.told() == "" and one.said == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_one_that_is_asked_to_end(watched: Callable[[list[str]], Watched], number: signal.Signals) -> None:
    """The launcher reports this end."""
    one = watched(SLEEPS)
    one.process.send_signal(number)
    assert one.told() == "" and one.said == ""


def test_one_that_ends_the_job_itself(watched: Callable[[list[str]], Watched]) -> None:
    one = watched(SLEEPS)
    one.companion.stdin.write(companion_process.ABORTS)
    time.sleep(0.2)
    one.process.kill()
    assert one.told() == "" and one.said == ""


def test_where_the_launcher_has_ended_the_job(watched: Callable[[list[str]], Watched]) -> None:
    one = watched(SLEEPS)
    one.launcher.close()
    one.process.kill()
    one.process.wait()
    time.sleep(2 * companion_process._ENDING_SECONDS)
    assert one.said == ""


def test_who_writes_where_a_rank_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system is asked about a file: a server that does not answer, a frequent reason, would hold the end up."""
    read, write = os.pipe()
    child = subprocess.Popen(SLEEPS, stdout=write)
    asks_nothing = {name: getattr(os, name) for name in ("listdir", "readlink", "O_ACCMODE")}
    monkeypatch.setattr(companion_process, "os", SimpleNamespace(**asks_nothing))
    try:
        pipe = os.readlink(f"/proc/self/fd/{write}")
        assert companion_process._writes(str(child.pid), {pipe})
        assert not companion_process._writes(str(child.pid), {f"{pipe}1", "pipe:[0]"})
    finally:
        child.kill()
        child.wait()
        os.close(read)
        os.close(write)


def test_other_writers_of_a_fifo_live(tmp_path: Path) -> None:
    """Ranks and other programs may share a FIFO (``exec >fifo``); the launcher's own pipes have no names."""
    os.mkfifo(fifo := tmp_path / "fifo")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # a process that writes, as this one must not, would be ended
    with open(fifo, "wb") as writer:
        monitor = subprocess.Popen(SLEEPS, stdout=writer)
    code = "from tfdist.processes import companion_process as w; w._end(w._pipes(-1), set())"
    with open(fifo, "wb") as writer:
        rank = subprocess.Popen([sys.executable, "-c", code], stdout=writer, stderr=writer, cwd=ROOT)
    assert rank.wait(30) == 0 and monitor.poll() is None
    monitor.kill()
    monitor.wait()
    os.close(reader)


def test_one_that_fails_before_all_have_begun() -> None:
    """Its own message tells why, and a rank that waits for it ends the job."""
    code = (
        "from tfdist.core.environment import Launch; from tfdist.processes.companion import Companion\n"
        "with Companion(Launch(2, 1), 60).start():\n    raise SystemExit(3)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "")


def test_one_that_is_stopped_holds_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("import os\nos.kill(os.getpid(), 19)\n")
    launcher, connection = socket.socketpair()
    monkeypatch.setattr(companion, "_connection", connection.fileno)
    monkeypatch.setattr(companion, "_START_SECONDS", 0.2)
    monkeypatch.setattr(companion_process, "__file__", str(tmp_path / "program.py"))
    begun = time.monotonic()
    with (one := companion.Companion(Launch(2, 0), 60)).start():
        pass
    assert time.monotonic() - begun < 10 and one._process
    one._process.kill()
    one._process.wait()
    launcher.close()
    connection.close()
