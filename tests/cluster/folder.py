"""Resources that are removed when their process ends in any way: a folder, and services in it."""

from __future__ import annotations

import abc
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TypeVar

Own = TypeVar("Own", bound="Service")


class Folder:
    """A temporary folder. A child process removes it when this process, the only writer of a pipe, ends.

    Args:
        prefix: beginning of the folder's name.
    """

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._remover = subprocess.Popen(
            ["sh", "-c", 'cat; rm -rf "$0"', str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def cleanup(self) -> None:
        """Remove the folder."""
        assert self._remover.stdin
        self._remover.stdin.close()
        self._remover.wait()


class Service(abc.ABC):
    """A service that runs while its context is open."""

    def __enter__(self: Own) -> Own:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abc.abstractmethod
    def start(self) -> None:
        """Start the service; if that fails, ``close`` is called."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop what has been started; a second call does nothing."""
