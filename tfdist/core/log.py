"""Logging: the logger ``tfdist``, to stderr, and one voice for what all ranks know alike.

``logging.getLogger("tfdist")`` is Python's: its level and handlers can be changed as any other's. It comes with one
handler, which writes each line to stderr at once, unless the script has given it one before the import.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import Any

_LOGGER = logging.getLogger("tfdist")
_OF_ALL_RANKS = logging.getLogger("tfdist.job")
_OUTPUT_SECONDS = 0.2  # for the launcher to forward a message before it ends the ranks


class _Stderr(logging.StreamHandler[Any]):
    """To whatever ``sys.stderr`` is at the moment; not to that of the import."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def speak_as(rank: int) -> None:
    """From now on this process is a rank: of all, 0 alone says what ``announce`` is given."""
    _OF_ALL_RANKS.disabled = rank != 0
    if not _LOGGER.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("tfdist: %(message)s"))
        _LOGGER.addHandler(handler)
        _LOGGER.propagate = False  # the root's handler would say it again
    if _LOGGER.level == logging.NOTSET:
        _LOGGER.setLevel(logging.INFO)


def occupy_standard_streams() -> None:
    """Where standard input, output or error is closed, nothing else gets its number, to which libraries print."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


def log(message: str) -> None:
    """This rank says a line."""
    _LOGGER.info("%s", message)


def announce(message: str) -> None:
    """The job says a line: rank 0 does, for all."""
    _OF_ALL_RANKS.info("%s", message)


def rarely(count: int) -> bool:
    """Whether to tell of what happens again: the first, second, fourth, eighth … time."""
    return not count & (count - 1)


def last_words(text: str, forwarded: bool = True) -> None:
    """Say why this process is about to end the job, whatever becomes of the words.

    Args:
      text: of one or more lines.
      forwarded: by a launcher, which needs a moment for it.
    """
    with contextlib.suppress(Exception):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    if forwarded:
        time.sleep(_OUTPUT_SECONDS)
