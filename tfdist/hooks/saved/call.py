"""Saving calls: this rank writes the file, or leaves it to another; one file is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.core.files import whole
from tfdist.graph.job import Job
from tfdist.transport.saves import PendingSave

_OF_ONE_FILE = (".keras", ".h5", ".hdf5")


class SavingCalls(threading.local):
    """Saving call of each thread: the outermost call and its first path decide for all calls inside it.

    Args:
      job: the ranks.

    Attributes:
      open: True inside a saving call.
      left_last: True if another rank wrote the last save.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._announced = contextlib.ExitStack()
        self.open = False
        self._save: PendingSave | None = None
        self.left_last = False

    @property
    def left(self) -> bool:
        """Whether another rank writes the current save."""
        return self._save is not None and not self._save.writes

    def begin(self, path: Any) -> PendingSave | None:
        """Begin a save that another call may end, and return it; None if it concerns no other rank."""
        absolute = _absolute(path)
        if absolute is None or self._job.switches.alone_depth:
            return None
        return self._job.world.saves.begin(absolute)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Return a context for a call that saves."""
        if self.open:
            yield
            return
        self.open = True
        try:
            with self._announced:
                yield
        except BaseException as error:
            if self._save is not None:
                self._save.failed(portable(error))
            raise
        else:
            if self._save is not None:
                self._save.done()
        finally:
            self.left_last = self.left
            self.open, self._save = False, None

    def writes(self, path: Any) -> bool:
        """Return whether this rank is to write a path; this may wait for another rank."""
        if self._save is None:
            self._save = self.begin(path)
            if self._save is None:
                return True
            if self._save.writes and threading.current_thread() is threading.main_thread():
                self._announced.enter_context(self._job.world.waits.alone(f"the saving of {path}"))
        return self._save.writes

    def follow(self, path: Any) -> None:
        """Wait until another rank has written a path, if a rank writes it here."""
        absolute = _absolute(path)
        if absolute is not None and not self._job.switches.alone_depth:
            self._job.world.saves.begin(absolute, follows=True)

    @contextlib.contextmanager
    def whole_file(self, path: Any) -> Iterator[Any]:
        """Yield a temporary name for a file, which is renamed when complete; yield ``path`` if that is not possible."""
        target = _absolute(path) or ""
        if not target.endswith(_OF_ONE_FILE):
            yield path
            return
        with whole(target) as made:
            yield path if made == target else made


def left_out(saving: SavingCalls) -> Callable[..., Any]:
    """Return a wrapper for functions that only write to the path in their second argument."""

    def save(original: Callable[..., Any], saved: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        with saving.call():
            return original(saved, path, *args, **kwargs) if saving.writes(path) else None

    return save


@contextlib.contextmanager
def failing(save: PendingSave | None) -> Iterator[None]:
    """Return a context for a part of a save. An exception ends it on all ranks."""
    try:
        yield
    except BaseException as error:
        if save is not None:
            save.failed(portable(error))
        raise


def _absolute(path: Any) -> str | None:
    """Return the absolute path; None for other objects, and for paths in this process's memory."""
    if isinstance(path, tf.Tensor) and tf.executing_eagerly():
        path = path.numpy()
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    scheme, remote, rest = name.partition("://")
    if remote and scheme != "file":
        return None if scheme == "ram" else name
    return os.path.realpath(rest if remote else name)


def portable(error: BaseException) -> BaseException:
    """Return an exception that another rank can raise: TensorFlow's exceptions may hold an operation."""
    if isinstance(error, tf.errors.OpError):
        with contextlib.suppress(Exception):
            return type(error)(None, None, error.message)
    return error
