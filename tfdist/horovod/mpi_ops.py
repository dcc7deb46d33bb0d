"""MPI operations: the names that scripts also import from ``horovod.tensorflow.mpi_ops``."""

from __future__ import annotations

from typing import Any

from tfdist.horovod import basics
from tfdist.horovod.basics import *  # noqa: F403
from tfdist.horovod.basics import gpu_available
from tfdist.horovod.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from tfdist.horovod.functions import broadcast_
from tfdist.horovod.ops import Adasum, Average, Max, Min, Product, Sum
from tfdist.horovod.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from tfdist.horovod.rank_ops import (
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: Any = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Call ``allreduce`` with the default op ``Sum``. Collective: the process set's ranks."""
    return allreduce(
        tensor, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope, process_set=process_set,
    )  # fmt: skip


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
]
__all__ += basics.__all__
