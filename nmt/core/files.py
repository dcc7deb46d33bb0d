"""Atomic writes: files are written whole or not at all.

A reader, or a run that starts again after a crash, sees either the old content or the new one and never a part of it:
the content goes to a temporary name in the same directory, reaches the disk, and is renamed over the target, which
POSIX makes a single step (rename(2)).
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nmt.core.errors import InputError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space, a quota, a limit to the size of files


@contextmanager
def replace_atomically(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file that takes the place of `path` when the block ends, and disappears if the block fails.

    Args:
      path: the file to write; its directory must exist. A pipe or device is written to directly.
      mode: "w" for text (UTF-8, lines end in "\\n" on every system) or "wb" for bytes.

    Raises:
      InputError: the directory is missing or may not be written to, or the disk is full.
      ValueError: another mode.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f'mode is "w" or "wb", not {mode!r}')
    if os.path.exists(path) and not os.path.isfile(path):
        # A pipe or a device has no old content to keep, and must stay what it is. It is opened by the name given: the
        # real path of /dev/stdout may be a pipe that has no name.
        with _telling(path), _open(path, mode, path) as file:
            yield file
        return
    target, temporary = _names(path)
    # "x" keeps the user's umask, which tempfile would replace by owner-only access.
    file = _open(temporary, mode.replace("w", "x"), target)
    try:
        with _telling(target), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """Finds out whether `replace_atomically` could write a file, and leaves it as it is.

    Raises:
      InputError: it could not.
    """
    if os.path.isdir(path):
        raise InputError(unwritable(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))))
    if not os.path.exists(path) or os.path.isfile(path):  # a pipe would wait for its reader
        target, temporary = _names(path)
        _open(temporary, "x", target).close()
        temporary.unlink()


def remove_unfinished(directory: Path) -> None:
    """Removes what a process that was killed in `replace_atomically` has left; no other may be writing there."""
    for path in directory.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", path.name):
            path.unlink(missing_ok=True)


def append(path: str | os.PathLike[str], text: str) -> None:
    """Add text to the end of a file, which is made if missing.

    Raises:
      InputError: the file cannot be written.
    """
    with _telling(path), _open(path, "a", path) as file:
        file.write(text)


def unwritable(path: str | os.PathLike[str], error: OSError) -> str:
    """The message that a file cannot be written, with the remedy."""
    remedy = "choose a directory that exists and that you may write to"
    if error.errno in DISK_FULL:
        remedy = "free or choose another disk"
    return f"{os.fspath(path)}: cannot be written ({error.strerror}); {remedy}"


@contextmanager
def _telling(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in errors of writing to it: they know no name, unlike those of opening another file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise InputError(unwritable(path, error)) from error


def _names(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """The file that is replaced, and a temporary name beside it."""
    target = Path(os.path.realpath(path))  # what a link names is replaced, not the link
    # The name is unique among processes on any number of hosts that share the directory.
    return target, target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")


def _open(path: str | os.PathLike[str], mode: str, target: str | os.PathLike[str]) -> IO[Any]:
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        return open(path, mode, **text)  # type: ignore[call-overload]
    except OSError as error:
        raise InputError(unwritable(target, error)) from error


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Make the directory and its parents where they are missing, and return its path.

    Raises:
      InputError: it cannot be made, or something that is no directory has its name.
    """
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: the directory cannot be made ({error.strerror}); choose another one") from error
    return directory
