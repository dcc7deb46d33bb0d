"""Run the examples in docstrings of public names on every rank: ``mpirun -n 2 python -m tests.docstring_examples``.

Each example sees ``tf``, ``np``, ``keras`` and ``tfdist``, and no names of other examples.
"""

from __future__ import annotations

import doctest
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import extend, schedules
from tfdist import keras as tfdist_keras

# They end the process, or need other calls around them: their examples are code blocks, which are not run.
NOT_RUN = {
    *("abort", "uninstall", "join", "init", "ask_to_stop", "last_step"),
    *("use_reducer", "use_exchange"),
}


def public() -> Iterator[tuple[str, Any]]:
    """Yield (name, object) of the public functions and classes."""
    for module in (tfdist, schedules, tfdist_keras, extend):
        for name in getattr(module, "__all__", []):
            found = getattr(module, name)
            if callable(found) and getattr(found, "__module__", "").startswith("tfdist"):
                yield f"{module.__name__}.{name}", found


def examples() -> Iterator[doctest.DocTest]:
    """Yield the examples of docstrings, each with its own namespace."""
    finder = doctest.DocTestFinder(recurse=False)
    for name, found in public():
        names = {"tf": tf, "np": np, "keras": keras, "tfdist": tfdist}
        yield from (test for test in finder.find(found, name, module=False, extraglobs=names) if test.examples)


def main() -> None:
    """Run all examples, print their differences, and exit with 1 if there are any."""
    runner = doctest.DocTestRunner(verbose=False)
    for test in examples():
        runner.run(test)
    print(f"{runner.tries} lines of examples, {runner.failures} failures")
    sys.exit(1 if runner.failures else 0)


if __name__ == "__main__":
    main()
