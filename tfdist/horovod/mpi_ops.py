"""MPI operations: the names that scripts also import from ``horovod.tensorflow.mpi_ops``."""

from __future__ import annotations

from typing import Any

from tfdist.horovod import collectives, ops
from tfdist.horovod.basics import *  # noqa: F403
from tfdist.horovod.basics import gpu_available as gpu_available
from tfdist.horovod.collectives import *  # noqa: F403
from tfdist.horovod.functions import broadcast_ as broadcast_
from tfdist.horovod.ops import *  # noqa: F403
from tfdist.horovod.process_sets import *  # noqa: F403
from tfdist.horovod.rank_ops import *  # noqa: F403


def _allreduce(tensor: Any, name: str | None = None, op: Any = ops.Sum, **options: Any) -> Any:
    """Call ``allreduce`` with the default op ``Sum``. Collective: the process set's ranks."""
    return collectives.allreduce(tensor, op=op, name=name, **options)
