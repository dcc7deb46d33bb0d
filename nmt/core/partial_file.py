"""Partial files: output of long work, written piece by piece. A program that was killed can continue it.

`<path>.part` grows; `<path>.part.json` records the amount of finished work and an identifier of the work. At the end
the part file is renamed to `<path>`. A part file of different work (input, model or option) is overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from nmt.core.errors import InputError
from nmt.core.files import check_writable, replace_atomically, unwritable
from nmt.core.lock import hold


class Output(Protocol):
    """Receiver of the pieces.

    Attributes:
        done: amount of work that is done, in a unit that the caller chooses.
        notice: log line about earlier work; may be empty.
    """

    done: int
    notice: str

    def add(self, text: str, done: int) -> None:
        """Write the next piece; `done` is the amount of work done with it. Raises InputError if writing fails."""

    def complete(self) -> None:
        """Give the finished file its final name. Raises InputError if this fails."""


@contextmanager
def partial_file(path: str | os.PathLike[str], work: str) -> Iterator[Output]:
    """Yield an output in pieces; only this process writes it during the block. Finished pieces stay after the block.

    Args:
        path: path of the file; its directory is made if missing. A pipe or device is written to directly.
        work: identifier of the work; only pieces of the same work are reused.

    Raises:
        InputError: the file cannot be written, or another process writes it.
    """
    with ExitStack() as stack:
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            yield _Stream(stack.enter_context(replace_atomically(path)))
            return
        target = Path(os.path.realpath(path))  # the target of a link is replaced, not the link
        stack.enter_context(hold(_beside(target, ".lock"), os.fspath(path), "choose another file"))
        check_writable(target)
        output = _Part(target, work)
        stack.callback(output.close)
        yield output


class _Stream:
    """Output to a pipe or device."""

    done, notice = 0, ""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def add(self, text: str, done: int) -> None:
        self._file.write(text)
        self._file.flush()

    def complete(self) -> None:
        pass


class _Part:
    """Output to a file that grows under another name."""

    def __init__(self, target: Path, work: str) -> None:
        self._target, self._work = target, work
        self._part, self._record = _beside(target, ".part"), _beside(target, ".part.json")
        self.done, size, self.notice = self._left()
        try:
            self._file = open(self._part, "ab")  # noqa: SIM115 (closed by `close`)
            self._file.truncate(size)
        except OSError as error:
            raise InputError(unwritable(self._part, error)) from error

    def _left(self) -> tuple[int, int, str]:
        """Return the amount of work done, its size in bytes, and a log line about it."""
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            done, size, work = int(record["done"]), int(record["bytes"]), record["work"]
            found = os.path.getsize(self._part)
        except FileNotFoundError:
            return 0, 0, ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            return 0, 0, f"{self._record} cannot be used ({error}): starting again"
        if work != self._work or found < size:
            return 0, 0, f"{self._part} was begun with another input, model or options: starting again"
        return done, size, f"continuing {self._part}"

    def add(self, text: str, done: int) -> None:
        try:
            self._file.write(text.encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise InputError(unwritable(self._part, error)) from error
        with replace_atomically(self._record) as file:
            json.dump({"work": self._work, "done": done, "bytes": size}, file)
        self.done = done

    def complete(self) -> None:
        try:
            os.replace(self._part, self._target)
        except OSError as error:
            raise InputError(unwritable(self._target, error)) from error
        self._record.unlink(missing_ok=True)

    def close(self) -> None:
        with suppress(OSError):  # the record does not count data that a full disk refuses
            self._file.close()
        if not self.done:
            self._part.unlink(missing_ok=True)


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(target.name + ending)
