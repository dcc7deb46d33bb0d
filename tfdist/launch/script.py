"""``python -m tfdist.launch.script script.py …``: run a program as python would, after ``import tfdist``.

For scripts without the import line. Python has imported the package, which starts the ranks and hooks into
TensorFlow, before it comes here: to run a module of a package is to import the package.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Run ``script.py …`` or ``-m module …`` as ``__main__``.

    Args:
      arguments: as they would follow ``python``.
    """
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        sys.argv = list(arguments[1:])  # the module's file comes first once it has been found
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not arguments:
        raise SystemExit(
            "tfdist.launch.script: no script given: python -m tfdist.launch.script script.py … or -m module …"
        )
    sys.argv = list(arguments)
    if not getattr(sys.flags, "safe_path", False):  # else (python -P) nothing stands for the program's directory
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
