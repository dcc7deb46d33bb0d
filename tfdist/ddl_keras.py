"""The Keras callbacks of IBM's DDL, for scripts that list them: ``tfdist.DDLCallback`` and the other one.

They are callbacks of ``tf.keras``: of Keras 3, or with ``TF_USE_LEGACY_KERAS=1`` of tf_keras. ``fit`` of Keras 3 needs
neither (``training.fit``); that of tf_keras gives no metrics of all ranks by itself.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.start import process
from tfdist.training.fit_callbacks import averaged_logs, weights_and_state

_process = process()


class DDLCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """What is logged at the end of an epoch becomes the mean over the ranks: list it before those that look at it.

    Collective: all ranks, with the same names at each epoch's end.
    """

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages."""
        if logs and not _process.job.switches.alone_depth:
            logs.update(averaged_logs(dict(logs), f"the end of epoch {epoch + 1}, in DDLCallback", _process.job))


class DDLGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks rank 0's weights and optimizer state when training begins, after ``disable_bcast()`` too.

    Collective: all ranks at the beginning of training.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Takes rank 0's values."""
        # In a session, where nothing is executed at once, they are taken before the first step.
        if tf.executing_eagerly() and not _process.job.switches.alone_depth:
            _process.steps.variables.take(weights_and_state(self.model, _process.job))


__all__ = ["DDLCallback", "DDLGlobalVariablesCallback"]
