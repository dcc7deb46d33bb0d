"""Scratch folders: hidden folders of unfinished files, next to the place of the finished ones.

The folder of a process that was killed stays. The next process that makes one of the same kind there removes it, if its
lock says that the process has ended (`nmt.core.lock`).
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nmt.core.errors import InputError
from nmt.core.lock import hold

_LOCK = "lock"


@contextlib.contextmanager
def scratch_folder(place: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder, which is removed at the end of the block.

    Args:
      place: folder to make it in.
      prefix: begin of its name, which says what it is for.

    Raises:
      OSError: it cannot be made.
    """
    for left in place.glob(f"{glob.escape(prefix)}*/{_LOCK}"):
        with contextlib.suppress(InputError, OSError):
            if left.parent.lstat().st_uid == os.getuid():
                with _held(left.parent):
                    shutil.rmtree(left.parent)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    try:
        with _held(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _held(folder: Path) -> contextlib.AbstractContextManager[str]:
    return hold(folder / _LOCK, os.fspath(folder), "choose another folder")
