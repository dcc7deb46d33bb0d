"""Horovod's Python interface for TensorFlow: ``import tfdist.horovod as hvd``; the rest of a script stays the same.

After ``hvd.init()`` nothing is averaged or broadcast automatically. Only ``DistributedOptimizer``,
``DistributedGradientTape`` and the operations below exchange data.
"""

from __future__ import annotations

from tfdist.horovod import basics, collectives, elastic, functions, mpi_ops, ops, optimizers, process_sets, rank_ops
from tfdist.horovod.basics import *  # noqa: F403
from tfdist.horovod.collectives import *  # noqa: F403
from tfdist.horovod.compression import Compression
from tfdist.horovod.functions import *  # noqa: F403
from tfdist.horovod.mpi_ops import gpu_available
from tfdist.horovod.ops import *  # noqa: F403
from tfdist.horovod.optimizers import *  # noqa: F403
from tfdist.horovod.process_sets import *  # noqa: F403
from tfdist.horovod.rank_ops import *  # noqa: F403
from tfdist.horovod.sync_batch_norm import SyncBatchNormalization

__all__ = ["Compression", "SyncBatchNormalization", "elastic", "functions", "gpu_available", "mpi_ops"]
__all__ += basics.__all__
__all__ += collectives.__all__
__all__ += functions.__all__
__all__ += ops.__all__
__all__ += optimizers.__all__
__all__ += process_sets.__all__
__all__ += rank_ops.__all__
