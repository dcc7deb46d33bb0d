"""DDL Keras callbacks: ``tfdist.DDLCallback`` and ``tfdist.DDLGlobalVariablesCallback``, for scripts that list them.

They are callbacks of ``tf.keras``: of Keras 3, or of tf_keras with ``TF_USE_LEGACY_KERAS=1``. ``fit`` needs neither of
them: it averages logs and begins with rank 0's variables (see ``training.fit``).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.start import process
from tfdist.training.fit_callbacks import averaged_logs, weights_and_state

_process = process()


class DDLCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the logs over the ranks at the end of each epoch. List it before callbacks that read the logs.

    Collective: all ranks, with the same names at each epoch's end.
    """

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the logs with their means over the ranks."""
        if logs is not None and not _process.job.switches.alone_depth:
            place = f"the end of epoch {epoch + 1}, in {type(self).__name__}"
            logs.update(averaged_logs(dict(logs), place, _process.job))


class DDLGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks rank 0's weights and optimizer state when training begins, also after ``disable_bcast()``.

    Collective: all ranks at the beginning of training.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Take rank 0's values."""
        # In a session's graph nothing executes eagerly: the session takes the values before its first step.
        if tf.executing_eagerly() and not _process.job.switches.alone_depth:
            _process.steps.variables.take(weights_and_state(self.model, _process.job))


__all__ = ["DDLCallback", "DDLGlobalVariablesCallback"]
