"""Hooks where checkpoints are read that other settings may have written: by TensorFlow 1's Saver, and by Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.training import saver

from tfdist.compat import optimizers
from tfdist.core.log import announce
from tfdist.graph.graph_state import state_of
from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps
from tfdist.updates.local_sgd import local_sgd_of
from tfdist.updates.loss_scale import LossScaleState, named

# Variables that a setting adds to graphs, and the setting.
_MADE_BY = {
    "loss_scale_state": "loss_scale",
    **dict.fromkeys(("block_position", "block_start", "block_change"), "sync"),
    "int8_feedback": "compression",
}
_WITHOUT = {"loss_scale": "'none'", "sync": "'gradients'", "compression": "another one"}
_OTHER_SETTING = (
    "{} has no {}: it was written with TFDIST_{} {}, or by one process; it is {!r} now. Set the old value again. Or "
    "initialise all variables, and restore the others by a Saver that has only these (var_list=)"
)
_FILTERED = "bmuf or diloco"
_OTHER_BLOCKS = (
    "the state of %s was saved with TFDIST_SYNC '%s', which is '%s' now: only the optimizer's own variables are loaded"
)
_LEFT_OUT = "%s was written with TFDIST_%s %r, which is %r now. Its variables for this setting are not restored"


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Hook tensorflow/python/training/saver.py, and keras/src/optimizers/base_optimizer.py, which loads nothing if the
    number of an optimizer's variables differs.
    """
    blocks = local_sgd_of(steps)

    def restore(original: Callable[..., Any], self: Any, sess: Any, save_path: Any) -> Any:
        now = job.switches.settings
        try:
            found = original(self, sess, save_path)
        except tf.errors.NotFoundError as error:
            for name, setting in _MADE_BY.items():
                if name in str(error):
                    known = _written_with(save_path)
                    before = repr(known[setting]) if setting in known else _WITHOUT[setting]
                    told = _OTHER_SETTING.format(save_path, name, setting.upper(), before, getattr(now, setting))
                    raise tf.errors.NotFoundError(error.node_def, error.op, told) from error
            raise
        state = state_of(sess.graph) if isinstance(sess, session.BaseSession) else None
        trains = state is not None and any(collective.averages for collective in state.collectives)
        for setting, value in _written_with(save_path).items() if trains else ():
            own = _sync(now.sync) if setting == "sync" else getattr(now, setting)
            if own != value and (setting != "loss_scale" or now.loss_scale == "none"):
                announce(_LEFT_OUT % (save_path, setting.upper(), value, getattr(now, setting)))
        return found

    def load_own(original: Callable[..., Any], self: Any, store: Any) -> Any:
        if len(self.variables) == len(store.keys()):
            return original(self, store)
        own, added = len(self.variables) - blocks.added(self), len(store.keys()) - len(self.variables)
        known = _saved_with(added + blocks.added(self), len(optimizers.trained_by(self)))
        now = _sync(job.switches.settings.sync)
        if own and known not in (None, now):
            announce(_OTHER_BLOCKS % (type(self).__name__, known, now))
            first, behind = optimizers.behind_own(self, blocks.added(self))
            for number, variable in enumerate(first):
                variable.assign(store[str(number)])
            for number, variable in enumerate(behind, len(store.keys()) - len(behind)):
                variable.assign(store[str(number)])
            return None
        return original(self, store)

    patches.replace(saver.Saver, "restore", restore, ("self", "sess", "save_path"))
    where = "keras.src.optimizers.base_optimizer:BaseOptimizer"
    patches.when_imported(where, patches.replace, "load_own_variables", load_own, ("self", "store"))


def _sync(value: str) -> str:
    """Return the kind of blocks that a value of TFDIST_SYNC needs variables for."""
    return _FILTERED if value in ("bmuf", "diloco") else value


def _saved_with(added: int, trained: int) -> str | None:
    """Return the kind of blocks for which an optimizer of so many trained variables has so many more; None: none."""
    return {0: "gradients", 1 + trained: "average", 1 + 2 * trained: _FILTERED}.get(added)


def _written_with(path: Any) -> dict[str, str]:
    """Return the settings that have added variables to a checkpoint, with values that follow from the variables."""
    reader = tf.train.load_checkpoint(path)
    names = reader.get_variable_to_shape_map()  # tfdist's variables that a graph has once have no scope
    found = {}
    if "block_position" in names:
        found["sync"] = _FILTERED if any(name.endswith("block_change") for name in names) else "average"
    if "int8_feedback" in names:
        found["compression"] = "int8"
    if "loss_scale_state" in names:
        found["loss_scale"] = named(LossScaleState(*reader.get_tensor("loss_scale_state")).kind)
    return found
