"""Elastic, for Keras: see ``tfdist.horovod.elastic``."""

from __future__ import annotations

from tfdist.horovod.elastic import HorovodInternalError, HostsUpdatedInterrupt, KerasState, ObjectState, run
from tfdist.horovod.keras.callbacks import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback

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
