"""The error for what a user can mend; whatever else is raised is a fault of the program."""

from __future__ import annotations

import re

_GRAPH_ERROR = "Graph execution error:"


class InputError(Exception):
    """A user's input cannot be used.

    The message names the file, line or flag, and the remedy; programs print it alone, without a traceback.
    """


def reason_of(error: BaseException) -> str:
    """What has gone wrong, in one line.

    TensorFlow begins the message of an operation that failed in a session with where that operation was defined; the
    reason (a file and what the system says of it) comes after, behind the node's name. An operating system's error is
    its text and its file.

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
