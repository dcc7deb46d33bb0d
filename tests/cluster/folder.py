"""A temporary folder that is removed when its process ends, however it does."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path


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
