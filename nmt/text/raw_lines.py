"""Lines of raw text files, which may be compressed by gzip: read one after the other, for `nmt.prepare`."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator

from nmt.text.lines import GZIP, LOOKED_AT_BYTES, MARK, check_kind, check_regular, decoded, empty, unreadable


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file or of a compressed one. See `nmt.text.lines` for the ends of lines.

    Raises:
      InputError: the file cannot be read, is empty or not UTF-8.
    """
    check_regular(path)
    try:
        with open(path, "rb") as stored:
            packed = stored.read(len(GZIP)) == GZIP
            stored.seek(0)
            with gzip.open(stored) if packed else stored as file:
                yield from _decoded(path, file)
    except (OSError, EOFError, zlib.error) as error:  # a compressed file may be damaged or cut off
        raise unreadable(path, error if isinstance(error, OSError) and error.strerror else ValueError(error)) from error


def packed_or_plain(path: str) -> str:
    """Return the path, or the path of its compressed file if only that exists."""
    packed = f"{path}.gz"
    return packed if os.path.exists(packed) and not os.path.exists(path) else path


def _decoded(path: str, file: io.BufferedReader | gzip.GzipFile) -> Iterator[str]:
    number = 0
    check_kind(path, file.peek(LOOKED_AT_BYTES)[:LOOKED_AT_BYTES])
    for number, line in enumerate(file, 1):
        if line == MARK and number == 1:
            break
        yield decoded(path, number, line)
    else:
        if number:
            return
    raise empty(path)
