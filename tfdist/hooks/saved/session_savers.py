"""Hooks of savers for TensorFlow 1's sessions: Saver, SavedModels, monitored sessions' hooks, and summary files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tensorflow.python.client import session as tf_session
from tensorflow.python.saved_model import builder_impl, constants, simple_save
from tensorflow.python.summary.writer import event_file_writer
from tensorflow.python.training import basic_session_run_hooks, saver

from tfdist.hooks.patches import Patches
from tfdist.hooks.saved.call import SavingCalls, failing, left_out
from tfdist.hooks.saved.unwritten import Unwritten

_FOLLOWS = "_tfdist_follows"  # attribute of a saver hook: another rank's hook saves instead
_SAVE = "_tfdist_turn"  # attribute of a builder: its save, if this rank writes


def hook(patches: Patches, saving: SavingCalls, rank: int) -> None:
    """Install the hooks of this module."""
    _session_savers(patches, saving)
    _builders(patches, saving)
    _saver_hooks(patches, saving)
    _event_files(patches, rank)


def _session_savers(patches: Patches, saving: SavingCalls) -> None:
    """Hook ``tf.compat.v1.train.Saver``: tensorflow/python/training/saver.py."""

    def save(original: Callable[..., Any], self: Any, sess: Any, *args: Any, **kwargs: Any) -> Any:
        with saving.call():
            of_graph = isinstance(sess, tf_session.SessionInterface)
            return original(self, _Saving(sess, self, saving) if of_graph else sess, *args, **kwargs)

    def build_eager(
        original: Callable[..., Any], self: Any, checkpoint_path: Any, build_save: Any, build_restore: Any
    ) -> Any:
        if not build_save or saving.writes(checkpoint_path):
            return original(self, checkpoint_path, build_save, build_restore)
        original(self, checkpoint_path, False, build_restore)
        if self.saver_def is not None:
            self.saver_def.save_tensor_name = checkpoint_path
        return None

    def export(original: Callable[..., Any], self: Any, filename: Any = None, *args: Any, **kwargs: Any) -> Any:
        return None if filename and saving.left else original(self, filename, *args, **kwargs)

    patches.replace(saver.Saver, "save", save, ("self", "sess", "save_path"))
    patches.replace(saver.Saver, "_build_eager", build_eager, ("self", "checkpoint_path", "build_save"))
    patches.replace(saver.Saver, "export_meta_graph", export, ("self", "filename"))
    patches.replace_everywhere(simple_save, "simple_save", left_out(saving), ("session", "export_dir"))


class _Saving(Unwritten):
    """A session for a Saver: it runs the operation that writes only if this rank is to write."""

    def __init__(self, session: Any, of: Any, saving: SavingCalls) -> None:
        super().__init__(session, "")
        self._of, self._saving = of.saver_def, saving

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        if self._of is not None and fetches == self._of.save_tensor_name:
            path = feed_dict[self._of.filename_tensor_name]
            if not self._saving.writes(path):
                return path
        return self._session.run(fetches, feed_dict, options, run_metadata)


def _builders(patches: Patches, saving: SavingCalls) -> None:
    """Hook ``SavedModelBuilder``, which saves from its creation until ``save``: …/saved_model/builder_impl.py."""
    owner = builder_impl._SavedModelBuilder

    def make(original: Callable[..., Any], self: Any, export_dir: Any) -> None:
        save = None if saving.open else saving.begin(export_dir)
        if save is None or save.writes:
            setattr(self, _SAVE, save)
            with failing(save):
                original(self, export_dir)
            return

        def saved(as_text: bool = False, *args: Any, **kwargs: Any) -> bytes:
            name = constants.SAVED_MODEL_FILENAME_PBTXT if as_text else constants.SAVED_MODEL_FILENAME_PB
            return os.path.join(os.fsencode(export_dir), os.fsencode(name))

        self._export_dir, self.save = export_dir, saved
        self.add_meta_graph_and_variables = self.add_meta_graph = lambda *args, **kwargs: None

    def add(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        with failing(getattr(self, _SAVE, None)):
            return original(self, *args, **kwargs)

    def save(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        save = getattr(self, _SAVE, None)
        with failing(save):
            path = original(self, *args, **kwargs)
        if save is not None:
            save.done()
        return path

    patches.replace(owner, "__init__", make, ("self", "export_dir"))
    patches.replace(owner, "save", save, ("self", "as_text"))
    patches.replace(builder_impl.SavedModelBuilder, "add_meta_graph_and_variables", add, ("self", "sess", "tags"))


def _saver_hooks(patches: Patches, saving: SavingCalls) -> None:
    """Hook ``CheckpointSaverHook``, which saves by each rank's own clock: …/training/basic_session_run_hooks.py.

    Once another rank has saved in its place, such a hook leaves all further saves to that rank's clock.
    """
    owner = basic_session_run_hooks.CheckpointSaverHook

    def save(original: Callable[..., Any], self: Any, session: Any, step: Any) -> Any:
        if getattr(self, _FOLLOWS, False):
            for listener in self._listeners:
                listener.before_save(session, step)
            return any([listener.after_save(session, step) for listener in self._listeners])
        saving.left_last = False
        stops = original(self, session, step)
        if saving.left_last and self._timer._every_secs is not None:
            setattr(self, _FOLLOWS, True)
        return stops

    def end(original: Callable[..., Any], self: Any, session: Any) -> Any:
        if getattr(self, _FOLLOWS, False):
            step = session.run(self._global_step_tensor)
            padded = self._get_saver()._pad_step_number
            saving.follow(f"{self._save_path}-{step:08d}" if padded else f"{self._save_path}-{step}")
        return original(self, session)

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
