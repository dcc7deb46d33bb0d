"""Atomic writes: a file is written completely or not at all.

A reader, or a run that restarts after a crash, sees either the old content or the new content, never a part. The
content is written to a temporary file in the same directory and flushed to the disk. Then the file is renamed to the
target's name, which is atomic on POSIX (rename(2)), and gets its permissions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nmt.core.errors import InputError

RAW = "raw"  # directory, next to prepared texts, of the texts before preparation, for scores
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space left, quota exceeded, file too large


@contextmanager
def replace_atomically(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file that replaces `path` at the end of the block, and is deleted if the block fails.

    Args:
      path: the file to write; its directory must exist. A pipe or device is written to directly.
      mode: "w" for text (UTF-8, lines end in "\\n" on every system) or "wb" for bytes.

    Raises:
      InputError: the directory is missing or may not be written to, or the disk is full.
      ValueError: an unknown mode.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f'mode is "w" or "wb", not {mode!r}')
    if os.path.exists(path) and not os.path.isfile(path):
        # A pipe or a device must not be replaced by a file. It is opened by the given name, because the real path of
        # /dev/stdout may be a pipe that has no name.
        with _telling(path), _open(path, mode, path) as file:
            yield file
        return
    target, temporary = _names(path)
    # Mode "x" respects the user's umask; the module tempfile would give access to the owner only.
    file = _open(temporary, mode.replace("w", "x"), target)
    try:
        with _telling(target):
            with file:
                if target.exists():  # others may not read it, until it has the target's permissions
                    with contextlib.suppress(OSError):
                        os.fchmod(file.fileno(), 0o600)
                yield file
            put_in_place(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def put_in_place(finished: Path, target: Path) -> None:
    """Give a file its final name, after its contents are on the disk; then the name is, too.

    A file of this name is replaced, and its permissions stay.
    """
    with open(finished, "rb") as file:
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):  # there may be no such file, or no permissions on this file system
        finished.chmod(stat.S_IMODE(target.stat().st_mode))
    os.replace(finished, target)
    with contextlib.suppress(OSError):  # some file systems cannot do it for a directory
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def check_no_input(flag: str, output: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Check that an output is no input.

    Args:
      flag: name of the flag that names the output.
      output: path of the file to write.
      inputs: paths of the files to read.

    Raises:
      InputError: it is one of them.
    """
    if os.path.realpath(output) in map(os.path.realpath, inputs):
        raise InputError(f"--{flag}={os.fspath(output)} is also an input and would be lost: choose another file")


def remove_unfinished(directory: Path, name: str = "") -> None:
    """Remove temporary files that killed processes left in `replace_atomically`; no other process may write there.

    Args:
      directory: directory of the files.
      name: name of the one file whose temporary files are meant; empty for all files.
    """
    for path in directory.glob(".*.tmp"):
        if re.fullmatch(rf"\.{re.escape(name) or '.+'}\.[0-9a-f]{{32}}\.tmp", path.name):
            path.unlink(missing_ok=True)


def append(path: str | os.PathLike[str], text: str) -> None:
    """Append text to a file, which is made if missing.

    Raises:
      InputError: the file cannot be written.
    """
    with _telling(path), _open(path, "a", path) as file:
        file.write(text)


def unwritable(path: str | os.PathLike[str], error: OSError) -> str:
    """Return the message that a file cannot be written, with the remedy."""
    remedy = "choose a directory that exists and that you may write to"
    if error.errno in DISK_FULL:
        remedy = "free or choose another disk"
    return f"{os.fspath(path)}: cannot be written ({error.strerror}); {remedy}"


@contextmanager
def _telling(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert an error of writing to an InputError with the file's name, which such an error lacks.

    Errors of opening a file have a name and pass unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise InputError(unwritable(path, error)) from error


def _names(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the path of the file to replace, and a temporary path in the same directory."""
    target = Path(os.path.realpath(path))  # the target of a link is replaced, not the link
    # The temporary name is unique among processes on all hosts that share the directory.
    return target, target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")


def _open(path: str | os.PathLike[str], mode: str, target: str | os.PathLike[str]) -> IO[Any]:
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        return open(path, mode, **text)  # type: ignore[call-overload]
    except OSError as error:
        raise InputError(unwritable(target, error)) from error


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Make a directory and its missing parents, and return its path.

    Raises:
      InputError: the directory cannot be made, or a file has its name.
    """
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: the directory cannot be made ({error.strerror}); choose another one") from error
    return directory


def raw_path(prepared: str) -> Path:
    """Return the path of the raw text of a prepared file."""
    return Path(prepared).parent / RAW / Path(prepared).name
