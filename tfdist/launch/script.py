"""``python …/tfdist/launch/script.py script.py …``: run a program as python would, after ``import tfdist``.

For scripts without the import line. The import starts the ranks and hooks into TensorFlow. This file is run by its
path: with ``python -m tfdist.launch.script`` Python would search the current folder first for tfdist's imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence

FILE = os.path.abspath(__file__)
_PACKAGE = "tfdist"


def main(arguments: Sequence[str]) -> None:
    """Run ``script.py …`` or ``-m module …`` as ``__main__``.

    Args:
      arguments: arguments as for ``python``.
    """
    module = arguments[:1] == ["-m"] and len(arguments) > 1
    if not arguments:
        raise SystemExit(f"{FILE}: no script given: python {FILE} script.py … or -m module …")
    if not getattr(sys.flags, "safe_path", False):  # python -P has no entry for the program's directory
        sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.realpath(arguments[0]))
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:  # a checkout that is not installed, or only a folder of that name
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(FILE))))
    sys.argv = list(arguments[1:] if module else arguments)  # runpy puts the module's file first
    importlib.import_module(_PACKAGE)  # by name: the modules of launch/ must not import the package
    if module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
