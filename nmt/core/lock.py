"""Locks: only one process at a time writes to a file or directory; a second one gets an error that names the holder.

A lock is a file with the holder's host, process id and start time. The holder also has a system lock on the file
(flock(2)), which ends when the process ends for any reason. If the file names a process of this host and has no system
lock, that process is dead and the lock is free. This does not hold for other hosts, since some shared file systems do
not pass locks between hosts. But if a job restarts on another host, its earlier processes have ended. If nobody holds
the lock, the file is empty or deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from nmt.core.errors import InputError
from nmt.core.files import make_directory, unwritable
from nmt.core.ranks import Ranks, call_on_root


@contextmanager
def hold(path: str | os.PathLike[str], place: str, elsewhere: str, job: str = "") -> Iterator[str]:
    """Hold a lock during the block, and release it at the end in any case.

    Args:
        path: path of the lock file. Its directory is made if missing, and removed at the end if it is then empty.
        place: name of the locked file or directory, for messages.
        elsewhere: advice for the user if the lock is held, for example "choose another out_dir".
        job: name of this process's job if the job may be restarted, else "". A lock of the same job from another host
            is free, too.

    Yields:
        a log line that names the dead holder whose lock was taken over; empty if there was none.

    Raises:
        InputError: another process holds the lock, or a process of another host may hold it. Or the lock file cannot be
            written.
    """
    lock = Path(path)
    made = [directory for directory in (lock.parent, *lock.parent.parents) if not directory.exists()]
    file = None
    try:
        make_directory(lock.parent)
        file, notice = _taken(lock, place, elsewhere, job)
        yield notice
    finally:
        if file is not None:
            with file:
                _remove(lock, file)
        for directory in made:
            with contextlib.suppress(OSError):
                directory.rmdir()


@contextmanager
def hold_for_all(
    ranks: Ranks, path: str | os.PathLike[str], place: str, elsewhere: str, job: str = ""
) -> Iterator[str]:
    """Hold a lock for all ranks of a run; rank 0 holds it. Arguments and yielded value are those of `hold`.

    Collective: every rank enters; leaving is not collective.

    Raises:
        CollectiveError: on every rank, if `hold` raises an InputError on rank 0.
    """
    with contextlib.ExitStack() as held:
        yield call_on_root(ranks, lambda: held.enter_context(hold(path, place, elsewhere, job)))


def _taken(lock: Path, place: str, elsewhere: str, job: str) -> tuple[IO[str], str]:
    """Acquire the lock; return the open lock file and the log line, as `hold` yields it."""
    file, locked = _opened(lock)
    try:
        holder = _read(file)
        if locked is False or (holder and not _left(holder, locked, job)):
            raise InputError(f"{place} is in use by {_named(holder)}: {_remedy(lock, holder, elsewhere)}")
        _write(file, job)
    except OSError as error:
        file.close()
        raise InputError(unwritable(lock, error)) from error
    except InputError:
        file.close()
        raise
    return file, f"{lock} was left by {_named(holder)}, which has ended: taken over" if holder else ""


def _opened(lock: Path) -> tuple[IO[str], bool | None]:
    """Open the file and lock it with flock; the bool is False if another process has the lock, None without flock."""
    while True:
        file = _open(lock)
        locked: bool | None = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = False
        except OSError:  # a file system without flock
            locked = None
        if _is(lock, file):
            return file, locked
        file.close()  # the holder has deleted the file after this process opened it


def _open(lock: Path) -> IO[str]:
    try:
        # Not through a link: in a shared folder another user may have put one there, to a file of this one.
        number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        return open(number, "a+", encoding="utf-8")
    except OSError as error:
        raise InputError(unwritable(lock, error)) from error


def _is(lock: Path, file: IO[str]) -> bool:
    """Return whether an open file still has this name."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _remove(lock: Path, file: IO[str]) -> None:
    with contextlib.suppress(OSError):
        file.truncate(0)  # an empty file is free, too, if the directory does not allow its deletion
        if _is(lock, file):  # else a user has deleted this lock, and the file may be another process's lock
            lock.unlink()


def _read(file: IO[str]) -> dict[str, Any]:
    """Return the holder's `host`, `pid`, `since` and `job`; {} if there is no holder."""
    file.seek(0)
    text = file.read().strip("\0 \n")
    if not text:
        return {}
    try:
        holder = json.loads(text)
        return {
            "host": str(holder["host"]),
            "pid": int(holder["pid"]),
            "since": str(holder["since"]),
            "job": str(holder.get("job", "")),
        }
    except (ValueError, KeyError, TypeError):
        return {"host": "an unknown host", "pid": 0, "since": "an unknown time", "job": ""}


def _write(file: IO[str], job: str) -> None:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    file.truncate(0)
    file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since, "job": job}) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _left(holder: dict[str, Any], locked: bool | None, job: str) -> bool:
    """Return whether the named holder is certainly dead."""
    if holder["host"] != socket.gethostname():
        return bool(job) and holder["job"] == job
    return locked is True or not _runs(holder["pid"])


def _runs(pid: int) -> bool:
    """Return whether a process of this host is running; a zombie is not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user, or a system without /proc
        return True


def _named(holder: dict[str, Any]) -> str:
    if not holder:
        return "a process that is just starting"
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}"


def _remedy(lock: Path, holder: dict[str, Any], elsewhere: str) -> str:
    if not holder or holder["host"] == socket.gethostname():
        return f"wait until it has ended, stop it, or {elsewhere}"
    return f"if that process no longer runs, delete {lock} and start again; else wait, stop it, or {elsewhere}"
