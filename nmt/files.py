"""Files are written whole or not at all.

A reader, or a run that starts again after a crash, sees either the old content or the new one and never a part of it:
the content goes to a temporary name in the same directory, reaches the disk, and is renamed over the target, which
POSIX makes a single step (rename(2)).
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nmt.errors import InputError


@contextmanager
def replace_atomically(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file that takes the place of `path` when the block ends, and disappears if the block fails.

    Args:
      path: the file to write; its directory must exist. A pipe or device is written to directly.
      mode: "w" for text (UTF-8, lines end in "\\n" on every system) or "wb" for bytes.

    Raises:
      InputError: the directory is missing or may not be written to.
      ValueError: another mode.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f'mode is "w" or "wb", not {mode!r}')
    target = Path(os.path.realpath(path))  # what a link names is replaced, not the link
    if target.exists() and not target.is_file():
        # A pipe or a device has no old content to keep, and must stay what it is.
        with _open(target, mode, target) as file:
            yield file
        return
    # The name is unique among processes on any number of hosts that share the directory. "x" keeps the user's umask,
    # which tempfile would replace by owner-only access.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    file = _open(temporary, mode.replace("w", "x"), target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"{target}: cannot be written ({error.strerror}); free or choose another disk") from error
        raise


def _open(path: Path, mode: str, target: Path) -> IO[Any]:
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        return open(path, mode, **text)  # type: ignore[call-overload]
    except OSError as error:
        raise InputError(
            f"{target}: cannot be written ({error.strerror}); choose a directory that exists and that you may write to"
        ) from error


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
