"""Hooks where TensorFlow, Keras 3 and tf_keras save files: if several ranks save to one path, one of them writes it.

The other ranks return as if they had written. They skip a function that only writes. A function that also counts and
keeps checkpoints does everything but the writing. ``transport.saves`` decides which rank writes.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint, checkpoint_management
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import save as saved_model

from tfdist.core.files import whole
from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.hooks.saved import session_savers
from tfdist.hooks.saved.call import SavingCalls, failing, left_out
from tfdist.hooks.saved.unwritten import Unwritten
from tfdist.training.steps import Steps
from tfdist.transport.saves import PendingSave

# Functions of a model and a path that only write to the path.
_OF_KERAS = {
    "keras.src.saving.saving_api": ("save_model", "save_weights"),
    "keras.src.saving.saving_lib": ("save_model", "save_weights_only"),
    "keras.src.legacy.saving.legacy_h5_format": ("save_model_to_hdf5",),
    "tf_keras.src.saving.saving_api": ("save_model", "save_weights"),
    "tf_keras.src.saving.saving_lib": ("save_model", "save_weights_only"),
    "tf_keras.src.saving.legacy.save": ("save_model", "save_weights"),
    "tf_keras.src.saving.legacy.hdf5_format": ("save_model_to_hdf5",),
}


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    saving = SavingCalls(job)
    _keras(patches, saving)
    _hdf5(patches, saving)
    _checkpoints(patches, saving)
    session_savers.hook(patches, saving, job.world.rank)


def _keras(patches: Patches, saving: SavingCalls) -> None:
    """Hook Keras 3: keras/src/saving, …/models/model.py; and tf_keras: tf_keras/src/saving, …/engine/training.py."""

    def to_file(original: Callable[..., Any], saved: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        with saving.call():
            if not saving.writes(path):
                return None
            if kwargs.get("max_shard_size") or any(type(argument) in (int, float) for argument in args):
                return original(saved, path, *args, **kwargs)  # several files
            with saving.whole_file(path) as file:
                return original(saved, file, *args, **kwargs)

    def functions(names: tuple[str, ...], wrapper: Callable[..., Any]) -> Callable[[Any], None]:
        def patch(module: Any) -> None:
            for name in names:
                patches.replace_everywhere(module, name, wrapper, ("model", "filepath"))

        return patch

    for module, names in _OF_KERAS.items():
        files = module.endswith(("saving_lib", "h5_format", "hdf5_format"))
        patches.when_imported(module, functions(names, to_file if files else left_out(saving)))
    for module in ("keras.src.models.model", "tf_keras.src.engine.training"):
        patches.when_imported(
            module, lambda m: patches.replace(m.Model, "export", left_out(saving), ("self", "filepath"))
        )


def _hdf5(patches: Patches, saving: SavingCalls) -> None:
    """Hook HDF5 files, which all formats of Keras write: h5py/_hl/files.py.

    Packages on top of Keras open such files by themselves, for example for LoRA weights. A file gets its name when it
    is closed or flushed, so that another rank may still read the one before.
    """

    def make(
        original: Callable[..., Any],
        self: Any,
        name: Any,
        mode: str = "r",
        driver: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        new = mode in ("w", "w-", "x") and driver is None and not saving.open
        save = saving.begin(name) if new else None
        if save is None:
            original(self, name, mode, driver, *args, **kwargs)
        elif not save.writes:  # in memory only
            original(self, name, "w", "core", *args, **kwargs | {"backing_store": False})
        else:
            with failing(save), contextlib.ExitStack() as stack:
                made = name if mode != "w" else stack.enter_context(whole(os.path.abspath(os.fsdecode(name))))
                original(self, made, mode, driver, *args, **kwargs)
                self._tfdist_name, self._tfdist_making = os.fsdecode(name), _Making(stack.pop_all(), save)
                weakref.finalize(self, self._tfdist_making.drop, self.id)  # it may never be closed

    def complete(original: Callable[..., Any], self: Any) -> None:
        making = getattr(self, "_tfdist_making", None)
        with making.ending() if making else contextlib.nullcontext():
            original(self)

    def files(module: Any) -> None:
        plain = module.File.filename
        named = property(lambda self: getattr(self, "_tfdist_name", None) or plain.fget(self))
        patches.replace(module.File, "__init__", make, ("self", "name", "mode", "driver"))
        for method in ("close", "flush"):
            patches.replace(module.File, method, complete, ("self",))
        patches.assign(module.File, "filename", named)

    patches.when_imported("h5py._hl.files", files)


class _Making:
    """The making of a file, which gets its name at the end of ``stack``.

    Args:
      stack: contexts that end then; after an exception the file is removed, and the one before stays.
      save: the save, of which all ranks hear how it has ended.
    """

    def __init__(self, stack: contextlib.ExitStack, save: PendingSave) -> None:
        self._stack: contextlib.ExitStack | None = stack
        self._save = save

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Return a context in which the content gets complete."""
        stack, self._stack = self._stack, None
        if stack is None:
            yield
            return
        with failing(self._save), stack:
            yield
        self._save.done()

    def drop(self, identifier: Any) -> None:
        """End the making of a file that is dropped. Its identifier is valid if the file was not closed."""
        with self.ending():
            if identifier:
                identifier.close()


def _checkpoints(patches: Patches, saving: SavingCalls) -> None:
    """Hook ``tf.train.Checkpoint``, its manager, and SavedModels: tensorflow/python/checkpoint, …/saved_model."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with saving.call():
            return original(*args, **kwargs)

    def write(
        original: Callable[..., Any],
        self: Any,
        file_prefix: Any,
        checkpoint_number: Any = None,
        session: Any = None,
        options: Any = None,
    ) -> Any:
        if ops.inside_function():  # it is written when the function runs, not now
            return original(self, file_prefix, checkpoint_number, session, options)
        with saving.call():
            prefix = f"{file_prefix}-{checkpoint_number:d}" if checkpoint_number else file_prefix
            if saving.writes(prefix):
                return original(self, file_prefix, checkpoint_number, session, options)
            if tf.executing_eagerly():
                return tf.constant(prefix)
            without = Unwritten(session or checkpoint.get_session(), prefix)
            return original(self, file_prefix, checkpoint_number, without, options)

    def unless_left(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return None if saving.left else original(*args, **kwargs)

    patches.replace(checkpoint.TrackableSaver, "save", write, ("self", "file_prefix", "checkpoint_number", "session"))
    for owner, name in (
        (checkpoint.Checkpoint, "_write"),
        (checkpoint.CheckpointV1, "write"),
        (checkpoint.CheckpointV1, "save"),
    ):
        patches.replace(owner, name, around, ("self", "file_prefix"))
    patches.replace_everywhere(
        checkpoint_management, "update_checkpoint_state_internal", unless_left, ("save_dir", "model_checkpoint_path")
    )
    patches.replace(checkpoint_management, "_delete_file_if_exists", unless_left, ("filespec",))
    patches.replace_everywhere(saved_model, "save", left_out(saving), ("obj", "export_dir"))
