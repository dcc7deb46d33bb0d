"""Hooks where TensorFlow 1's sessions are saved: Saver, SavedModels, monitored sessions' hooks, and summary files."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as tf_session
from tensorflow.python.saved_model import builder_impl, constants, simple_save
from tensorflow.python.summary.writer import event_file_writer
from tensorflow.python.training import basic_session_run_hooks, saver, training_util

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.hooks.saving_calls import SavingCalls, ending, failing
from tfdist.training.steps import Steps
from tfdist.transport.saves import PendingSave
from tfdist.updates.error_feedback import error_feedback_of
from tfdist.updates.local_sgd import local_sgd_of


def hook(patches: Patches, job: Job, steps: Steps, saving: SavingCalls) -> None:
    """Install the hooks of this module."""
    _savers(patches, steps, saving)
    _builders(patches, saving)
    _saver_hooks(patches, saving)
    _event_files(patches, job.world.rank)


def _savers(patches: Patches, steps: Steps, saving: SavingCalls) -> None:
    """Hook ``tf.compat.v1.train.Saver``: tensorflow/python/training/saver.py."""
    blocks, left_over = local_sgd_of(steps), error_feedback_of(steps)

    def save(
        original: Callable[..., Any],
        self: Any,
        sess: Any,
        save_path: Any,
        global_step: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with saving.call(), contextlib.ExitStack() as stack:
            if isinstance(sess, tf_session.BaseSession):
                blocks.before_saving(sess)
                stack.enter_context(left_over.saving(sess))
            if global_step is not None and not isinstance(global_step, tf.compat.integral_types):
                global_step = training_util.global_step(sess, global_step)
            path = _numbered(self, save_path, global_step)
            if saving.writes(path):
                return original(self, sess, save_path, global_step, *args, **kwargs)
            if tf.executing_eagerly():
                self._build_eager(path, False, False)
            if self._is_empty:
                return None
            given = inspect.signature(original).bind(self, sess, save_path, global_step, *args, **kwargs).arguments
            if given.get("write_state", True):
                self._RecordLastCheckpoint(path)
                self._MaybeDeleteOldCheckpoints()
            return path

    patches.replace(saver.Saver, "save", save, ("self", "sess", "save_path", "global_step"))
    patches.replace_everywhere(simple_save, "simple_save", saving.only_writes, ("session", "export_dir"))


def _numbered(of: Any, path: Any, step: Any) -> str:
    """Return the prefix of a Saver's checkpoint (tensorflow/python/training/saver.py, ``save``)."""
    path = tf.compat.as_str(path)
    if step is None:
        return path
    return f"{path}-{step:08d}" if of._pad_step_number else f"{path}-{step}"


def _builders(patches: Patches, saving: SavingCalls) -> None:
    """Hook ``SavedModelBuilder``, which saves from its creation until ``save``: …/saved_model/builder_impl.py."""
    owner = builder_impl._SavedModelBuilder

    def make(original: Callable[..., Any], self: Any, export_dir: Any) -> None:
        save = PendingSave(writes=True) if saving.open else saving.begin(export_dir)
        self._tfdist_save, self._export_dir = save, export_dir
        if save.writes:
            with failing(save):
                original(self, export_dir)

    def add(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        save = self._tfdist_save
        if save.writes:
            with failing(save):
                original(self, *args, **kwargs)

    def save(original: Callable[..., Any], self: Any, as_text: Any = False, *args: Any, **kwargs: Any) -> Any:
        save = self._tfdist_save
        if not save.writes:
            name = constants.SAVED_MODEL_FILENAME_PBTXT if as_text else constants.SAVED_MODEL_FILENAME_PB
            return os.path.join(os.fsencode(self._export_dir), os.fsencode(name))
        with ending(save):
            return original(self, as_text, *args, **kwargs)

    patches.assign(owner, "_tfdist_save", PendingSave(writes=True))  # of builders from before the import
    patches.replace(owner, "__init__", make, ("self", "export_dir"))
    patches.replace(owner, "save", save, ("self", "as_text"))
    for name in ("add_meta_graph", "add_meta_graph_and_variables"):
        for cls in (owner, builder_impl.SavedModelBuilder):
            patches.replace(cls, name, add, ("self",))


def _saver_hooks(patches: Patches, saving: SavingCalls) -> None:
    """Hook ``CheckpointSaverHook``, which saves by each rank's own clock: …/training/basic_session_run_hooks.py.

    Once another rank has saved in its place, such a hook leaves all further saves to that rank's clock.
    """
    owner = basic_session_run_hooks.CheckpointSaverHook

    def save(original: Callable[..., Any], self: Any, session: Any, step: Any) -> Any:
        if self._tfdist_follows:
            for listener in self._listeners:
                listener.before_save(session, step)
            return any([listener.after_save(session, step) for listener in self._listeners])
        saving.left_last = False
        stops = original(self, session, step)
        if saving.left_last and self._timer._every_secs is not None:
            self._tfdist_follows = True
        return stops

    def end(original: Callable[..., Any], self: Any, session: Any) -> Any:
        if self._tfdist_follows:
            step = session.run(self._global_step_tensor)
            saving.begin(_numbered(self._get_saver(), self._save_path, step), follows=True)
        return original(self, session)

    patches.assign(owner, "_tfdist_follows", False)
    patches.replace(owner, "_save", save, ("self", "session", "step"))
    patches.replace(owner, "end", end, ("self", "session"))


def _event_files(patches: Patches, rank: int) -> None:
    """Hook summary files, named by a second and a host but no process: …/summary/writer/event_file_writer.py."""

    def make(
        original: Callable[..., Any],
        self: Any,
        logdir: Any,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str | None = None,
    ) -> None:
        suffix = f"{filename_suffix or ''}.rank-{rank}" if rank else filename_suffix
        original(self, logdir, max_queue, flush_secs, suffix)

    patches.replace(event_file_writer.EventFileWriter, "__init__", make, ("self", "logdir", "max_queue"))
