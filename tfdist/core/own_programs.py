"""Own programs: ``tfdist-run`` and ``python -m tfdist``, which import the package before they are ranks, or never are.

An import in a program of the user starts this rank. In these two programs the import must not: ``tfdist-run`` is no
rank, and ``python -m tfdist`` first examines what the start needs.
"""

from __future__ import annotations

import os
import sys

LAUNCHER = "tfdist-run"
# Modules that startup files of Python have imported before tfdist: an import of tfdist loads this module first.
LOADED_BEFORE = frozenset(sys.modules)
_PACKAGE = "tfdist"


def runs_own_program() -> bool:
    """Return whether this process runs one of these programs."""
    program = sys.argv[0] if sys.argv else ""
    if program != "-m":  # Python's name for the program while it looks for the module
        return os.path.basename(program) == LAUNCHER
    # The module and its arguments are the last words: python -W error -m module arguments
    module = sys.orig_argv[-len(sys.argv)]
    return module.removeprefix("-m") == _PACKAGE
