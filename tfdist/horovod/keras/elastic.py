"""Elastic, for Keras: see ``tfdist.horovod.elastic``; and callbacks that keep an elastic state."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.horovod.elastic import HorovodInternalError, HostsUpdatedInterrupt, KerasState, ObjectState, run


class _OfState(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that keeps an elastic state."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state


class CommitStateCallback(_OfState):
    """Commits an elastic state every few batches, and at the end of each epoch.

    Args:
      state: a state of ``hvd.elastic``.
      batches_per_commit: number of batches between commits.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__(state)
        self.batches_per_commit = batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit after every ``batches_per_commit`` batches."""
        if (batch + 1) % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(_OfState):
    """Stores the number of the batch within the epoch in an elastic state's ``batch``."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the number of the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set the number to 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(_OfState):
    """Stores the number of finished epochs, over all calls of ``fit``, in an elastic state's ``epoch``."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Note the number of epochs finished before this call of ``fit``."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the number of finished epochs."""
        self.state.epoch = self.initial_epoch + epoch + 1


__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
