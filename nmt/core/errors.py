"""The error for problems that a user can solve; any other exception is a bug of the program."""

from __future__ import annotations

import re

_GRAPH_ERROR = "Graph execution error:"


class InputError(Exception):
    """A user's input cannot be used.

    The message names the file, line or flag, and the remedy; programs print it alone, without a traceback.
    """


def reason_of(error: BaseException) -> str:
    """Return the reason of an error in one line.

    If an operation fails in a session, TensorFlow's message begins with the operation's definition. The reason (a file
    and the system's error) follows after the node's name. For an error of the operating system, the reason is its text
    and the file.

    >>> reason_of(OSError(28, "No space left on device", "model/x"))
    'No space left on device: model/x'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    text = str(getattr(error, "message", None) or error)
    if text.startswith(_GRAPH_ERROR):
        text = re.split(r"^Node: .*$", text, flags=re.MULTILINE)[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and re.fullmatch(r"\d+ root error\(s\) found\.", lines[0]):
        lines = [lines[1].removeprefix("(0) ")]
    return lines[0] if lines else type(error).__name__
