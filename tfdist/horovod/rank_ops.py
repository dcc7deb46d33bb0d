"""Rank operations: join, barrier, and ranks and sizes as tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import tensorflow as tf

from tfdist.graph import function_state
from tfdist.horovod import basics
from tfdist.horovod._operation import Operation
from tfdist.horovod._state import state
from tfdist.horovod.process_sets import global_process_set
from tfdist.training.join import check, stand_in_for_all

_JOIN = "\x1fjoin"  # a name that no script uses
_SUMMED = (
    "hvd.join with gradients that are reduced by {}: only averages can do without a joined rank. Use op=hvd.Average, "
    "or give all ranks the same number of steps"
)


def join() -> tf.Tensor:
    """Wait until all ranks have joined, when this rank has no more data; return the rank that joined last.

    The other ranks continue to train. Operations take zeros for this rank. Gradients of optimizers and tapes are
    averaged over the ranks that still train. In a graph, join serves operations only: for optimizers in sessions use
    ``tfdist.join``.

    Collective: all ranks, each when its data end.

    Returns:
      int32 scalar: the rank that joined last.

    Raises:
      RuntimeError: gradients are added up over several passes, or reduced by another op than ``Average``.
      tf.errors.FailedPreconditionError: on the other ranks, from operations that need this rank's data.
    """
    operation = Operation("join", _JOIN, 0, [])
    if not tf.executing_eagerly():
        return operation.run([])[0]
    if others := state.reduced_by - {"Average"}:
        raise RuntimeError(_SUMMED.format(", ".join(sorted(others))))
    averages = [c for c in state.job.world.kept.values() if c.channel is not None and c.averages]
    check(averages, "hvd.join")
    standing: Future[None] = Future()

    def stand_in() -> None:
        try:
            stand_in_for_all(averages)
            standing.set_result(None)
        except BaseException as error:
            standing.set_exception(error)

    threading.Thread(target=stand_in, name="tfdist hvd.join", daemon=True).start()
    (last,) = operation.run([])
    standing.result()  # all ranks have joined, so this does not wait
    operation.negotiation.count_anew()
    return last


def barrier(process_set: Any = global_process_set) -> Any:
    """Wait until all ranks of the process set have arrived. Collective: the process set's ranks.

    Returns:
      In a session's graph, an operation; else None.
    """
    (done,) = Operation("barrier", None, process_set, []).run([])
    return done.op if function_state.in_session() else None


def _constant(what: Callable[[], int], told: str) -> Callable[..., tf.Tensor]:
    """Return a function that returns a number of this process as a tensor."""

    def function(name: str | None = None) -> tf.Tensor:
        return tf.constant(what(), tf.int32, name=name)

    function.__name__ = function.__qualname__ = f"{what.__name__}_op"
    function.__doc__ = f"Return the {told}: int32 scalar."
    return function


rank_op = _constant(basics.rank, "rank of this process")
local_rank_op = _constant(basics.local_rank, "rank of this process on its host")
local_size_op = _constant(basics.local_size, "number of processes on this host")


def size_op(process_set_id: int | None = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of ranks of a process set: int32 scalar."""
    return tf.constant(len(state.members(process_set_id).ranks), tf.int32, name=name)


def process_set_included_op(process_set_id: int | None = 0, name: str | None = None) -> tf.Tensor:
    """Return whether this process is in a process set: int32 scalar, 0 or 1."""
    return tf.constant(int(state.world.rank in state.members(process_set_id).ranks), tf.int32, name=name)


__all__ = [
    "barrier",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
