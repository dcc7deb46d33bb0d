"""The error for what a user can mend; whatever else is raised is a fault of the program."""

from __future__ import annotations


class InputError(Exception):
    """A user's input cannot be used.

    The message names the file, line or flag, and the remedy; programs print it alone, without a traceback.
    """
