"""Horovod's Python interface for TensorFlow: ``import tfdist.horovod as hvd``; the rest of a script stays the same.

After ``hvd.init()`` nothing is averaged or broadcast automatically. Only ``DistributedOptimizer``,
``DistributedGradientTape`` and the operations below exchange data.
"""

from __future__ import annotations

from tfdist.horovod import basics, elastic, functions, mpi_ops
from tfdist.horovod.basics import *  # noqa: F403
from tfdist.horovod.compression import Compression
from tfdist.horovod.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from tfdist.horovod.mpi_ops import *  # noqa: F403
from tfdist.horovod.optimizers import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
    PartialDistributedOptimizer,
)
from tfdist.horovod.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "functions",
    "mpi_ops",
]
__all__ += basics.__all__
__all__ += [name for name in mpi_ops.__all__ if name not in basics.__all__]
