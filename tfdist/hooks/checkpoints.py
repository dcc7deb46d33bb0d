"""Hooks where checkpoints are written and read: by TensorFlow 1's Saver, ``tf.train.Checkpoint`` and Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.client import session
from tensorflow.python.training import saver

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps
from tfdist.updates.blocks import blocks_of
from tfdist.updates.checkpointed import left_over_of

# Variables that a setting adds to graphs.
_MADE_BY = {
    "loss_scale_state": "loss_scale",
    **dict.fromkeys(("block_position", "block_lookahead", "block_start", "block_change"), "sync"),
    "int8_feedback": "compression",
}
_OTHER_SETTING = (
    "{} has no {}: it was written without TFDIST_{}, with another one, or by one process; it is {!r} now. Go on "
    "without it; or initialise all variables, and restore the others by a Saver of them (var_list=)"
)


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """tensorflow/python/training/saver.py, …/checkpoint/checkpoint.py, keras/src/saving/saving_lib.py."""
    blocks, left_over = blocks_of(steps), left_over_of(steps)

    def save(original: Callable[..., Any], self: Any, sess: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(sess, session.BaseSession):
            return original(self, sess, *args, **kwargs)
        blocks.before_saving(sess)
        with left_over.saving(sess):
            return original(self, sess, *args, **kwargs)

    def restore(original: Callable[..., Any], self: Any, sess: Any, save_path: Any) -> Any:
        try:
            return original(self, sess, save_path)
        except tf.errors.NotFoundError as error:
            for name, setting in _MADE_BY.items():
                if name in str(error):
                    now = getattr(job.switches.settings, setting)
                    raise tf.errors.NotFoundError(
                        error.node_def, error.op, _OTHER_SETTING.format(save_path, name, setting.upper(), now)
                    ) from error
            raise

    def write(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            blocks.before_saving()
        return original(*args, **kwargs)

    def keras(module: Any) -> None:
        for name in ("save_model", "save_weights_only"):
            patches.replace_everywhere(module, name, write, ("model",))

    patches.replace(saver.Saver, "save", save, ("self", "sess"))
    patches.replace(saver.Saver, "restore", restore, ("self", "sess", "save_path"))
    patches.replace(checkpoint.TrackableSaver, "save", write, ("self", "file_prefix"))
    patches.when_imported("keras.src.saving.saving_lib", keras)
