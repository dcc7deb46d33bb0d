"""The state of another process, as Linux reports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tfdist.processes.process_state import GONE, RUNS, STOPPED, Process


def test_this_one() -> None:
    own = Process.own()
    assert own.pid == os.getpid() and own.started.isdigit()
    assert own.state() == RUNS


def test_another() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    one = Process(child.pid, _started(child.pid))
    assert one.state() == RUNS
    child.send_signal(signal.SIGSTOP)
    _until(one, STOPPED)
    child.send_signal(signal.SIGCONT)
    _until(one, RUNS)
    child.kill()
    _until(one, GONE)  # although no process has waited for it
    child.wait()
    assert one.state() == GONE


def test_a_later_one_of_the_same_number() -> None:
    assert Process(os.getpid(), "1").state() == GONE


def test_a_name_of_any_characters() -> None:
    child = subprocess.Popen(["bash", "-c", "exec -a 'a) S 1' sleep 60"])
    try:
        assert Process(child.pid, _started(child.pid)).state() == RUNS
    finally:
        child.kill()
        child.wait()


def _started(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


def _until(one: Process, state: str) -> None:
    deadline = time.monotonic() + 30
    while one.state() != state and time.monotonic() < deadline:
        time.sleep(0.01)
    assert one.state() == state
