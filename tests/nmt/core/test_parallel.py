"""Processes that compute pieces, and folders for unfinished files: how both end, also with a killed program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.core.errors import InputError
from nmt.core.parallel import processes
from nmt.core.scratch import scratch_folder
from tests.launch import ROOT

# Says when its folder is there and both processes compute, and names these.
PROGRAM = """
import os, sys, time
from pathlib import Path
from nmt.core.parallel import processes
from nmt.core.scratch import scratch_folder
def slow(piece):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(2)
with processes(2) as mapping, scratch_folder(Path(sys.argv[1]), ".kind-"):
    list(mapping(slow, range(9)))
"""


def doubled(piece: int) -> int:
    if piece < 0:
        raise InputError(f"{piece} is negative")
    return 2 * piece


def killed(piece: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ended(pid: int) -> bool:
    """Return whether a process has ended; a process without a parent that waits for it is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_results_are_in_the_order_of_the_pieces() -> None:
    for number, apart in ((1, False), (1, True), (3, False)):
        with processes(number, apart) as mapping:
            assert list(mapping(doubled, range(20))) == list(range(0, 40, 2)), number
            assert list(mapping(doubled, [])) == [], number
            assert (next(mapping(os.getpgid, [0])), next(mapping(abs, [-1]))) == (os.getpgid(0), 1)


def test_an_error_comes_back_and_a_killed_process_is_told() -> None:
    with pytest.raises(InputError, match="-1 is negative") as told, processes(2) as mapping:
        list(mapping(doubled, [1, 2, -1, 3, 4]))
    assert "in doubled" in str(told.value.__cause__)
    with pytest.raises(InputError, match="one of the processes was killed, perhaps"), processes(2) as mapping:
        list(mapping(killed, range(9)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_and_the_next_run_removes_the_folder(tmp_path: Path, number: signal.Signals) -> None:
    """The folder of a process that runs stays, and so does one that no lock is in."""
    (tmp_path / ".kind-of-another").mkdir()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    assert program.stdout and program.stderr
    with program:
        workers = [int(program.stdout.readline()) for _ in range(2)]
        with scratch_folder(tmp_path, ".kind-") as folder:
            assert len(list(tmp_path.iterdir())) == 3 and folder.is_dir(), "the other process runs"
        if number == signal.SIGINT:
            os.killpg(program.pid, number)
        else:
            program.kill()
        said = program.stderr.read()
        program.wait(20)
    assert soon(lambda: all(map(ended, workers)))
    assert said.count("Traceback") == (number == signal.SIGINT), said
    left = 1 + (number == signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == left
    with scratch_folder(tmp_path, ".kind-") as folder:
        assert sorted(tmp_path.iterdir()) == sorted([folder, tmp_path / ".kind-of-another"])
    assert [path.name for path in tmp_path.iterdir()] == [".kind-of-another"]
