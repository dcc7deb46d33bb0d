"""Logging: the logger ``tfdist``, which writes to stderr, and ``announce``, by which rank 0 logs for all ranks.

``logging.getLogger("tfdist")`` is a logger of Python: scripts can change its level and handlers. It gets one handler,
which writes each line to stderr at once, unless the script has added a handler before the import.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import Any

TRACE = 5  # below logging.DEBUG
LEVELS = {"error": logging.ERROR, "info": logging.INFO, "debug": logging.DEBUG, "trace": TRACE}
_LOGGER = logging.getLogger("tfdist")
_OF_ALL_RANKS = logging.getLogger("tfdist.job")
_OUTPUT_SECONDS = 0.2  # for the launcher to forward a message before it ends the ranks


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # no [Any] when Python 3.10 runs it
    """Handler that writes to the present ``sys.stderr``, not to the one at the import."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def set_log_prefix(rank: int) -> None:
    """Set the logger up for this rank: only rank 0 logs the lines of ``announce``."""
    _OF_ALL_RANKS.disabled = rank != 0
    if not _LOGGER.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("tfdist: %(message)s"))
        _LOGGER.addHandler(handler)
        _LOGGER.propagate = False  # the root's handler would write the line again
    if _LOGGER.level == logging.NOTSET:
        _LOGGER.setLevel(logging.INFO)


def occupy_standard_streams() -> None:
    """Open /dev/null for each closed standard stream: libraries would print into another file with its descriptor."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number: this one


def set_log_level(level: str) -> None:
    """Set the level of the logger: a key of ``LEVELS``."""
    _LOGGER.setLevel(LEVELS[level])


def traces() -> bool:
    """Return whether each rank logs each exchange."""
    return _LOGGER.isEnabledFor(TRACE)


def trace(message: str) -> None:
    """Log a line of this rank at the most detailed level."""
    _LOGGER.log(TRACE, "%s", message)


def debug(message: str) -> None:
    """Log a line of the job for those who look for a fault: only rank 0 writes it."""
    _OF_ALL_RANKS.debug("%s", message)


def log(message: str) -> None:
    """Log a line of this rank."""
    _LOGGER.info("%s", message)


def announce(message: str) -> None:
    """Log a line of the job: only rank 0 writes it."""
    _OF_ALL_RANKS.info("%s", message)


def rarely(count: int) -> bool:
    """Return whether to log a repeated event: at the first, second, fourth, eighth … time."""
    return not count & (count - 1)


def write_last_message(text: str, forwarded: bool = True) -> None:
    """Write to stderr why this process is about to end the job. Errors of the write are ignored.

    Args:
      text: one or more lines.
      forwarded: True if a launcher forwards the text: wait until it has done so.
    """
    with contextlib.suppress(Exception):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    if forwarded:
        time.sleep(_OUTPUT_SECONDS)
