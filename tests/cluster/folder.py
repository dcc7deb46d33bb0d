"""What must be taken away when its process ends, however it does: a folder, and what is started in one."""

from __future__ import annotations

import abc
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self


class Folder:
    """Removed by a process that waits for the end of this one: of a pipe that nobody else holds.

    Args:
      prefix: of its name.
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
        """Remove it."""
        assert self._remover.stdin
        self._remover.stdin.close()
        self._remover.wait()


class Service(abc.ABC):
    """Something that runs as long as the context is open."""

    def __enter__(self) -> Self:
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
        """Start it; if that fails it is closed."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what has been started; again is nothing."""
