"""Standard output of the programs whose result it is: they end quietly when nobody reads it any more."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from nmt.core.errors import InputError
from nmt.core.files import unwritable

_NAME = "standard output"


def check_open() -> None:
    """Check that there is a standard output, before the long work.

    Raises:
      InputError: the program was started without one.
    """
    if sys.stdout is None:
        raise InputError(f"{_NAME} is closed, but the result is written there: redirect it to a file or a pipe")


def as_json(value: Any) -> str:
    """Return a line of JSON; a number that is not finite, which JSON does not have, is null."""
    return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), ensure_ascii=False)


def write_lines(lines: Iterable[object]) -> bool:
    """Write lines to standard output; return False if nobody reads it any more.

    Raises:
      InputError: it cannot be written, because the disk is full for example.
    """
    try:
        for line in lines:
            print(line)
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        if isinstance(error, BrokenPipeError):
            return False
        raise InputError(unwritable(_NAME, error)) from error
    return True
