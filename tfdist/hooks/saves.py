"""Hooks where TensorFlow, Keras 3 and tf_keras save files: if several ranks save to one path, one of them writes it.

The other ranks return as if they had written. They skip a function that only writes. A function that also counts and
keeps checkpoints does everything but the writing. ``transport.saves`` decides which rank writes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint, checkpoint_management
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import save as saved_model

from tfdist.core.files import whole
from tfdist.graph.job import Job
from tfdist.hooks import session_saves
from tfdist.hooks.patches import Patches
from tfdist.hooks.saving_calls import SavingCalls, absolute, ending
from tfdist.training.steps import Steps
from tfdist.updates.local_sgd import local_sgd_of

# Functions of a model and a path that only write to the path, and those of them that may write it as one file.
_OF_KERAS = {
    "keras.src.saving.saving_api": ("save_model", "save_weights"),
    "tf_keras.src.saving.saving_api": ("save_model", "save_weights"),
    "tf_keras.src.saving.legacy.save": ("save_model", "save_weights"),
}
_FILES_OF_KERAS = {
    "keras.src.saving.saving_lib": ("save_model", "save_weights_only"),
    "keras.src.legacy.saving.legacy_h5_format": ("save_model_to_hdf5",),
    "tf_keras.src.saving.saving_lib": ("save_model", "save_weights_only"),
    "tf_keras.src.saving.legacy.hdf5_format": ("save_model_to_hdf5",),
}
_OF_ONE_FILE = (".keras", ".h5", ".hdf5")


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    blocks = local_sgd_of(steps)

    def prepare() -> None:
        steps.replicas.ask()
        if tf.executing_eagerly():
            blocks.before_saving()

    saving = SavingCalls(job, prepare)
    _keras(patches, saving)
    _hdf5(patches, saving)
    _checkpoints(patches, saving)
    session_saves.hook(patches, job, steps, saving)


def _keras(patches: Patches, saving: SavingCalls) -> None:
    """Hook Keras 3: keras/src/saving, …/models/model.py; and tf_keras: tf_keras/src/saving, …/engine/training.py."""

    def to_file(original: Callable[..., Any], saved: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        sharded = inspect.signature(original).bind(saved, path, *args, **kwargs).arguments.get("max_shard_size")
        name = absolute(path) or ""
        with saving.call():
            if not saving.writes(path):
                return None
            with whole(name) if name.endswith(_OF_ONE_FILE) and not sharded else contextlib.nullcontext(path) as file:
                return original(saved, file, *args, **kwargs)

    for table, wrapper in ((_OF_KERAS, saving.only_writes), (_FILES_OF_KERAS, to_file)):
        for module, names in table.items():
            for name in names:
                patches.when_imported(module, patches.replace_everywhere, name, wrapper, ("model", "filepath"))
    for where in ("keras.src.models.model:Model", "tf_keras.src.engine.training:Model"):
        patches.when_imported(where, patches.replace, "export", saving.only_writes, ("self", "filepath"))


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
        target = absolute(name)
        if mode not in ("w", "w-", "x") or driver is not None or saving.open or target is None:
            original(self, name, mode, driver, *args, **kwargs)
            return
        save = saving.begin(name)
        if not save.writes:  # in memory only
            original(self, name, "w", "core", *args, **kwargs | {"backing_store": False})
            return
        with contextlib.ExitStack() as making:
            making.enter_context(ending(save))
            made = making.enter_context(whole(target)) if mode == "w" else name
            original(self, made, mode, driver, *args, **kwargs)
            self._tfdist_name, self._tfdist_making = os.fsdecode(name), making.pop_all()
        weakref.finalize(self, drop, self._tfdist_making, self.id)  # it may never be closed

    def complete(original: Callable[..., Any], self: Any) -> None:
        making = getattr(self, "_tfdist_making", contextlib.ExitStack())
        with making.pop_all():  # the first time: then nothing is left in it
            original(self)

    def files(owner: Any) -> None:
        plain = owner.filename
        patches.replace(owner, "__init__", make, ("self", "name", "mode", "driver"))
        for method in ("close", "flush"):
            patches.replace(owner, method, complete, ("self",))
        patches.assign(owner, "filename", property(lambda self: getattr(self, "_tfdist_name", "") or plain.fget(self)))

    patches.when_imported("h5py._hl.files:File", files)


def drop(making: contextlib.ExitStack, identifier: Any) -> None:
    """End the making of an HDF5 file that is dropped. Its identifier is valid if the file was not closed."""
    with making.pop_all():
        if identifier:
            identifier.close()


def _checkpoints(patches: Patches, saving: SavingCalls) -> None:
    """Hook ``tf.train.Checkpoint``, its manager, and SavedModels: tensorflow/python/checkpoint, …/saved_model."""

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
            unwritten = types.SimpleNamespace(run=lambda save_path, feed_dict: prefix.encode())
            return original(self, file_prefix, checkpoint_number, unwritten, options)

    patches.replace(checkpoint.TrackableSaver, "save", write, ("self", "file_prefix", "checkpoint_number", "session"))
    for owner, name in (
        (checkpoint.Checkpoint, "_write"),
        (checkpoint.CheckpointV1, "write"),
        (checkpoint.CheckpointV1, "save"),
    ):
        patches.replace(owner, name, saving.around, ("self", "file_prefix"))
    state = "update_checkpoint_state_internal"
    patches.replace_everywhere(checkpoint_management, state, saving.unless_left, ("save_dir", "model_checkpoint_path"))
    patches.replace(checkpoint_management, "_delete_file_if_exists", saving.unless_left, ("filespec",))
    patches.replace_everywhere(saved_model, "save", saving.only_writes, ("obj", "export_dir"))
