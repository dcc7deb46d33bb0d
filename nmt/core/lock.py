"""Locks: one process at a time writes in a place, and whoever comes second learns who it is.

A lock is a file that names its holder: host, process, since when. The holder has it locked for the system, too
(flock(2)), which ends with the process however it dies; so a process of the same host that has left its name without
that lock is dead, and its place is free. Of another host this cannot be said: not every shared file system tells hosts
of each other's locks. But a job that starts again, elsewhere, does so because what it was before has ended. The file
stays empty or is deleted when nobody holds it.
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
from nmt.core.ranks import Ranks, from_root


@contextmanager
def hold(path: str | os.PathLike[str], place: str, elsewhere: str, job: str = "") -> Iterator[str]:
    """Holds a lock in a block, and releases it at every end of it.

    Args:
        path: the lock file; its directory is made if missing, and removed again if it is then still empty.
        place: what is locked, for messages.
        elsewhere: what else a user could do, for messages: "choose another out_dir".
        job: the name of this process's job, if it may start again; one of this name that another host has left is
            dead, too.

    Yields:
        what is to be said: from whom the lock was taken over; empty if from nobody.

    Raises:
        InputError: another process holds it, or one of another host may; or the file cannot be written.
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
    """The same for all ranks of a run, of which rank 0 holds the lock.

    Collective: every rank enters; leaving is not collective.

    Raises:
        AgreedError: on every rank, as `hold`.
    """
    with contextlib.ExitStack() as held:
        yield from_root(ranks, lambda: held.enter_context(hold(path, place, elsewhere, job)))


def _taken(lock: Path, place: str, elsewhere: str, job: str) -> tuple[IO[str], str]:
    """The lock file, open and with this process's name in it; and what is to be said."""
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
    """The file, and whether it is locked for the system: False if another has it so, None where that is not known."""
    while True:
        file = _open(lock)
        locked: bool | None = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = False
        except OSError:  # a file system without such locks
            locked = None
        if _is(lock, file):
            return file, locked
        file.close()  # its holder has deleted it meanwhile


def _open(lock: Path) -> IO[str]:
    try:
        return open(lock, "a+", encoding="utf-8")
    except OSError as error:
        raise InputError(unwritable(lock, error)) from error


def _is(lock: Path, file: IO[str]) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _remove(lock: Path, file: IO[str]) -> None:
    with contextlib.suppress(OSError):
        file.truncate(0)  # as good as deleted, should the directory no longer let us
        if _is(lock, file):  # and not the lock of another, if a user has deleted ours
            lock.unlink()


def _read(file: IO[str]) -> dict[str, Any]:
    """Who holds the lock: `host`, `pid` and `since`; empty for nobody."""
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
    """Whether a holder that has left its name is dead for certain."""
    if holder["host"] != socket.gethostname():
        return bool(job) and holder["job"] == job
    return locked is True or not _runs(holder["pid"])


def _runs(pid: int) -> bool:
    """Whether a process of this host runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except OSError:  # another user's; or a system without /proc
        return True


def _named(holder: dict[str, Any]) -> str:
    if not holder:
        return "a process that is just starting"
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}"


def _remedy(lock: Path, holder: dict[str, Any], elsewhere: str) -> str:
    if not holder or holder["host"] == socket.gethostname():
        return f"wait until it has ended, stop it, or {elsewhere}"
    return f"if that process no longer runs, delete {lock} and start again; else wait, stop it, or {elsewhere}"
