"""Basics: init and shutdown, ranks and sizes, the libraries that this package is built with, and timelines."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.core.log import announce
from tfdist.horovod._state import state
from tfdist.horovod.process_sets import ProcessSet, add_process_set, global_process_set


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Initialize: from now on gradients are averaged only where the script has wrapped an optimizer or a tape.

    A second call does nothing.

    Collective: all ranks.

    Args:
      comm: a list of all ranks, or an mpi4py communicator with all ranks; None means all ranks.
      process_sets: process sets to add. ``"dynamic"``, Horovod's word for sets that are added later, adds none.

    Raises:
      ValueError: ``comm`` has only some of the ranks, or a process set is given twice.
      SettingsError: settings of tfdist that have no meaning here.
    """
    if state.sets:
        return
    size = state.job.world.size
    given = None if comm is None else sorted(comm) if isinstance(comm, list | tuple) else list(range(comm.size))
    if given is not None and given != list(range(size)):
        raise ValueError(f"comm={comm!r} must have all {size} ranks of the job: start fewer ranks, or use a ProcessSet")
    state.begin()
    global_process_set.ranks = list(range(size))
    for process_set in [] if process_sets is None or isinstance(process_sets, str) else process_sets:
        add_process_set(process_set)


def shutdown() -> None:
    """Shut down; a later ``init`` may start again. Gradients are not averaged automatically after it either."""
    state.end()


def is_initialized() -> bool:
    """Return whether ``init`` was called, without ``shutdown`` since."""
    return bool(state.sets)


def rank() -> int:
    """Return the rank of this process, from 0."""
    return int(state.world.rank)


def size() -> int:
    """Return the number of processes."""
    return int(state.world.size)


def local_rank() -> int:
    """Return the rank of this process among the processes of its host."""
    return int(state.world.local_rank)


def local_size() -> int:
    """Return the number of processes on this host."""
    return int(state.world.local_size)


def _across() -> list[int]:
    """Return the ranks with this process's local rank, one for each host that has this local rank."""
    world = state.world
    own = world.topology.node_of(world.rank).index(world.rank)
    return [node[own] for node in world.topology.nodes if len(node) > own]


def cross_rank() -> int:
    """Return the index of this host among the hosts that have a process of this local rank."""
    return _across().index(state.world.rank)


def cross_size() -> int:
    """Return the number of hosts that have a process of this local rank."""
    return len(_across())


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of processes."""
    return len({len(node) for node in state.world.topology.nodes}) == 1


def mpi_threads_supported() -> bool:
    """Return whether several threads may call MPI. A job of several processes does not start without it."""
    return mpi_enabled()


def mpi_enabled() -> bool:
    """Return whether the processes communicate through MPI: False for a single process."""
    return bool(state.world.size > 1)


def mpi_built() -> bool:
    """Return whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def _without(name: str, what: str, answer: Any = False, told: bool = False) -> Callable[..., Any]:
    """Return the function ``name``, which answers that this package works without something, and may log it."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if told:
            announce(f"{name}: {what}")
        return answer

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {answer}: {what}."
    return function


gloo_enabled, gloo_built = (_without(name, "tfdist does not use Gloo") for name in ("gloo_enabled", "gloo_built"))
nccl_built = _without("nccl_built", "the operations of this package do not use NCCL", 0)
ddl_built = _without("ddl_built", "tfdist does not use IBM's DDL")
ccl_built = _without("ccl_built", "tfdist does not use oneCCL")
_TIMELINE = "nothing is recorded here: start the job with TFDIST_TIMELINE=FILE, which records all of it"
start_timeline, stop_timeline = (_without(f"{w}_timeline", _TIMELINE, None, w == "start") for w in ("start", "stop"))
cuda_built, rocm_built = (_without(name, "arrays are reduced in host memory") for name in ("cuda_built", "rocm_built"))


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Return whether TensorFlow sees a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
