"""nmt.core.lock: one process at a time; another takes over a dead process's lock; all ranks learn of it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nmt.core.errors import InputError
from nmt.core.lock import hold, hold_for_all
from nmt.core.ranks import CollectiveError, Ranks
from tests.nmt.core.thread_ranks import outcomes

WORDS = "the model", "choose another one"
HOLDER = """
import sys, time
from nmt.core.lock import hold
with hold(sys.argv[1], "", ""):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "out" / "run.lock"


def holder(lock: Path) -> subprocess.Popen[str]:
    """Return another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def ended(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a file system that has no such locks."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_it_is_there_in_the_block_and_names_the_holder(lock: Path) -> None:
    with hold(lock, *WORDS) as notice:
        assert notice == ""
        found = json.loads(lock.read_text())
        assert (found["host"], found["pid"]) == (socket.gethostname(), os.getpid())
        (lock.parent / "checkpoint").write_text("")
    assert [path.name for path in lock.parent.iterdir()] == ["checkpoint"]


def test_it_is_released_when_the_block_fails_and_leaves_nothing(lock: Path) -> None:
    with pytest.raises(KeyboardInterrupt), hold(lock, *WORDS):
        raise KeyboardInterrupt
    assert not lock.parent.exists()
    with hold(lock, *WORDS):
        assert lock.exists()


@pytest.mark.parametrize("flock", [True, False])
def test_a_second_process_is_refused_and_a_killed_one_gives_way(
    lock: Path, flock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = holder(lock)
    if not flock:
        without_flock(monkeypatch)
    try:
        text = lock.read_text()
        told = (
            f"the model is in use by process {first.pid} on {socket.gethostname()} since .*: wait until .*, or choose"
        )
        with pytest.raises(InputError, match=told), hold(lock, *WORDS):
            pass
        assert lock.read_text() == text
    finally:
        ended(first)
    assert lock.read_text() == text
    with hold(lock, *WORDS) as notice:
        assert notice.startswith(f"{lock} was left by process {first.pid} on ")
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert not lock.exists()


@pytest.mark.parametrize("text", ['{"host": "elsewhere", "pid": 1, "since": "then"}', "{", "3"])
def test_what_may_be_held_on_another_host_says_how_to_remove_it(lock: Path, text: str) -> None:
    lock.parent.mkdir()
    lock.write_text(text)
    remedy = f"if that process no longer runs, delete {lock} and start again"
    with pytest.raises(InputError, match=remedy), hold(lock, *WORDS):
        pass
    assert lock.read_text() == text


@pytest.mark.parametrize("job", ["", "mine", "another"])
def test_a_job_that_starts_again_elsewhere_takes_its_own_over(lock: Path, job: str) -> None:
    lock.parent.mkdir()
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": "then", "job": job}))
    if job != "mine":
        with pytest.raises(InputError, match="delete"), hold(lock, *WORDS, "mine"):
            pass
        return
    with hold(lock, *WORDS, "mine") as notice:
        assert notice == f"{lock} was left by process 1 on elsewhere since then, which has ended: taken over"
        assert json.loads(lock.read_text())["job"] == "mine"


def test_an_empty_lock_is_nobodys(lock: Path) -> None:
    lock.parent.mkdir()
    lock.write_text("")
    with hold(lock, *WORDS) as notice:
        assert notice == ""


def test_the_lock_of_another_is_not_deleted(lock: Path) -> None:
    """A user has deleted this run's lock, and another run has begun."""
    with hold(lock, *WORDS):
        lock.unlink()
        lock.write_text("another's")
    assert lock.read_text() == "another's"


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()
    told = pytest.raises(InputError, match=r"run.lock: cannot be written \(Is a directory\)")
    with told, hold(tmp_path / "run.lock", *WORDS):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: the directory cannot be made"), hold(tmp_path / "file/lock", *WORDS):
        pass


def test_all_ranks_learn_of_it(lock: Path) -> None:
    def body(ranks: Ranks) -> str:
        with hold_for_all(ranks, lock, *WORDS) as notice:
            ranks.barrier()
            return notice

    assert outcomes(3, body) == [""] * 3
    with hold(lock, *WORDS):
        errors = outcomes(3, body)
    assert all(isinstance(error, CollectiveError) for error in errors)
    assert [error.is_mine for error in errors] == [True, False, False]
    assert "in use by process" in str(errors[0])


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others may write to, it could name any file of this user."""
    (tmp_path / "precious").write_text("")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="lock: cannot be written"), hold(tmp_path / "lock", "a", "b"):
        pass
    assert (tmp_path / "lock").is_symlink() and (tmp_path / "precious").read_text() == ""
