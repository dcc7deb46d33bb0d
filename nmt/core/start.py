"""Start of a program of this package by `python -m`, before TensorFlow is imported, which takes seconds."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_LINES = (
    r"^WARNING: All log messages before absl::|^[IWE][0-9]{4} .*\.cc:[0-9]+\]|^20.*: [IWE] |^To enable the following"
)


def begin() -> None:
    """Prepare the process, if `python -m` is importing this package to find the program in it.

    Until the program works, Ctrl-C ends the process at once and without a traceback: there is nothing to save. If
    TensorFlow cannot be imported, one message says so. TensorFlow's log shows nothing but what ends the process,
    unless TF_CPP_MIN_LOG_LEVEL asks for more.
    """
    if sys.argv[:1] != ["-m"]:
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.excepthook = _tell
    if os.environ.setdefault(_LEVEL, "3") in ("2", "3") and shutil.which("grep"):
        sys.meta_path.insert(0, _Quiet())


class _Quiet(MetaPathFinder):
    """Imports TensorFlow without the lines that it logs before it reads its level."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return TensorFlow's spec with this import, once; None for other modules."""
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader and sys.stderr:
            load = spec.loader.exec_module

            def quietly(module: ModuleType) -> None:
                with _filtered():
                    load(module)

            spec.loader.exec_module = quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _filtered() -> Iterator[None]:
    """Leave log lines out of standard error: in a process of its own, which also passes on this one's last words."""
    kept = os.dup(2)
    grep = subprocess.Popen(
        ["grep", "-a", "-v", "-E", _LINES],
        stdin=subprocess.PIPE,
        stdout=kept,
        env={**os.environ, "LC_ALL": "C"},  # lines that are no UTF-8 are lines, too
        start_new_session=True,  # what ends this process and its group must not end it
    )
    assert grep.stdin
    os.dup2(grep.stdin.fileno(), 2)
    grep.stdin.close()
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that the import has started may hold the pipe
            grep.wait(2)


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] != "tensorflow":
        sys.__excepthook__(kind, error, traceback)
        return
    import tfdist  # noqa: F401  (on several ranks this ends the process, and one rank has told the reason)

    print(f"nmt: TensorFlow cannot be imported ({error}): pip install 'tfdist[tensorflow]'", file=sys.stderr)
