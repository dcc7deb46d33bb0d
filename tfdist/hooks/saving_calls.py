"""Saving calls: this rank writes the file, or leaves it to another rank."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.graph.job import Job
from tfdist.transport.saves import PendingSave


class SavingCalls(threading.local):
    """Saving call of each thread: the outermost call and its first path decide for all calls inside it.

    Args:
      job: the ranks.
      prepare: function that each outermost call calls first.

    Attributes:
      open: True inside a saving call.
      left_last: True if another rank wrote the last save.
    """

    def __init__(self, job: Job, prepare: Callable[[], None]) -> None:
        self._job, self._prepare = job, prepare
        self._ends = contextlib.ExitStack()  # contexts that end with the call
        self._save: PendingSave | None = None
        self.open = False
        self.left_last = False

    @property
    def left(self) -> bool:
        """Whether another rank writes the current save."""
        return self._save is not None and not self._save.writes

    def begin(self, path: Any, follows: bool = False) -> PendingSave:
        """Begin a save that another call may end; this may wait for another rank.

        Args:
          path: path of the save.
          follows: True if this rank never writes the path, but waits until it is written, if a rank writes it here.
        """
        name = absolute(path)
        if name is None or self._job.switches.alone_depth:
            return PendingSave(writes=True)
        return self._job.world.saves.begin(name, follows)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Return a context for a call that saves."""
        if self.open:
            yield
            return
        self.open = True
        try:
            with self._ends:
                self._prepare()
                yield
        finally:
            self.left_last = self.left
            self.open, self._save = False, None

    def writes(self, path: Any) -> bool:
        """Return whether this rank is to write a path; this may wait for another rank."""
        if self._save is None:
            self._save = self.begin(path)
            self._ends.enter_context(ending(self._save))
            if self._save.writes and threading.current_thread() is threading.main_thread():
                self._ends.enter_context(self._job.world.waits.alone(f"the saving of {path}"))
        return self._save.writes

    def only_writes(self, original: Callable[..., Any], saved: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Wrap a function that only writes to the path in its second argument."""
        with self.call():
            return original(saved, path, *args, **kwargs) if self.writes(path) else None

    def unless_left(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wrap a function that writes or removes another file than the one that is saved."""
        return None if self.left else original(*args, **kwargs)

    def around(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wrap a function that saves by the functions that it calls."""
        with self.call():
            return original(*args, **kwargs)


@contextlib.contextmanager
def failing(save: PendingSave) -> Iterator[None]:
    """Return a context for a part of a save. An exception ends the save on all ranks."""
    try:
        yield
    except BaseException as error:
        save.failed(_portable(error))
        raise


@contextlib.contextmanager
def ending(save: PendingSave) -> Iterator[None]:
    """Return a context for the last part of a save, whose end is the end of the save."""
    with failing(save):
        yield
    save.done()


def absolute(path: Any) -> str | None:
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


def _portable(error: BaseException) -> BaseException:
    """Return an exception that another rank can raise: TensorFlow's exceptions may hold an operation."""
    if isinstance(error, tf.errors.OpError):
        with contextlib.suppress(Exception):
            return type(error)(None, None, error.message)
    return error
