"""Files: one is written whole or not at all; and folders that killed processes have left are removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator

_FOLDER = re.compile(r"\.tfdist-[0-9a-z_]{8}")
_LOCK = ".lock"  # end of the name of the file that says that a folder is in use
_REST_SECONDS = 3_600.0  # for file systems that do not share locks between hosts: a younger folder is no rest
_CLEANING_SECONDS = 0.5  # then a removal stops; the next one removes the rest


@contextlib.contextmanager
def whole(path: str) -> Iterator[str]:
    """Yield a path where the block makes a file, which takes the place of ``path`` when it is complete and on disk.

    It is made in a new folder next to it, which nobody else can guess or enter. So two processes may write one path. A
    folder that a killed process has left is removed later. A path that is no file, or in whose folder this process may
    make none, is yielded itself.
    """
    target = os.path.realpath(path)
    place, name = os.path.split(target)
    if (os.path.lexists(target) and not os.path.isfile(target)) or not os.access(place, os.W_OK):
        yield path
        return
    remove_old(place, _FOLDER, _is_rest)
    folder = tempfile.mkdtemp(prefix=".tfdist-", dir=place)
    lock = os.open(os.path.join(folder, f"{name}{_LOCK}"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = os.path.join(folder, name)
        yield made
        with opened(made, os.O_NOFOLLOW) as file:
            os.fsync(file)  # a rename may reach the disk before the content
        if os.path.exists(target):
            shutil.copymode(target, made)
        os.replace(made, target)
        with contextlib.suppress(OSError), opened(place, os.O_DIRECTORY) as parent:
            os.fsync(parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _is_rest(folder: int, names: list[str]) -> bool:
    states = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in names]
    age = time.time() - max(state.st_mtime for state in (os.fstat(folder), *states))
    if age < _REST_SECONDS or not all(stat.S_ISREG(state.st_mode) for state in states):
        return False
    for name in names:
        if name.endswith(_LOCK):
            with opened(name, os.O_RDWR | os.O_NOFOLLOW, folder) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if a process holds it
    return True


def remove_old(place: str, folders: re.Pattern[str], is_old: Callable[[int, list[str]], bool]) -> None:
    """Remove this user's folders that nobody needs any more.

    Everybody may create files in a temporary folder. So links are not followed, and the checks and the removal use the
    same descriptors. A folder stays if it has another owner, or others may write to it.

    Args:
      place: the folder in which they are.
      folders: pattern of their names.
      is_old: function of a folder's descriptor and the names in it; False, or an error, if the folder is to stay.
    """
    deadline = time.monotonic() + _CLEANING_SECONDS
    with contextlib.suppress(OSError), opened(place, os.O_DIRECTORY) as parent:
        for name in filter(folders.fullmatch, os.listdir(parent)):
            # Another process may remove the same folder, or this user may not open it.
            with contextlib.suppress(OSError), opened(name, os.O_DIRECTORY | os.O_NOFOLLOW, parent) as folder:
                files = os.listdir(folder)
                if is_own(os.fstat(folder)) and is_old(folder, files):
                    for file in files:
                        os.unlink(file, dir_fd=folder)
                    os.rmdir(name, dir_fd=parent)
            if time.monotonic() > deadline:
                return


def is_own(state: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user, and only this user may write to it."""
    return state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextlib.contextmanager
def opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open a file or folder for reading, as ``os.open`` does, and close it at the end of the block."""
    descriptor = os.open(path, os.O_RDONLY | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
