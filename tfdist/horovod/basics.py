"""Basics: init and shutdown, this process's numbers, and what this is built with."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from tfdist.horovod._state import NOT_INITIALIZED, state
from tfdist.horovod.process_sets import ProcessSet, add_process_set, global_process_set


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Begin: from now on gradients are averaged where the script has wrapped an optimizer or a tape, and only there.

    Calling it again does nothing.

    Collective: all ranks.

    Args:
      comm: None; or all ranks, as a list or as a communicator of mpi4py.
      process_sets: to be brought into use; ``"dynamic"``, Horovod's word for those that are added later, adds none.

    Raises:
      ValueError: ``comm`` is of some of the ranks only, or process sets are given twice.
      SettingsError: settings of tfdist that have no meaning here.
    """
    if state.begun:
        return
    size = state.job.world.size
    given = None if comm is None else sorted(comm) if isinstance(comm, list | tuple) else list(range(comm.size))
    if given is not None and given != list(range(size)):
        raise ValueError(
            f"comm={comm!r}: all {size} ranks of the job take part; start as many as are wanted, or use a ProcessSet"
        )
    state.begin()
    global_process_set.ranks = list(range(size))
    for process_set in [] if process_sets is None or isinstance(process_sets, str) else process_sets:
        add_process_set(process_set)


def shutdown() -> None:
    """The end; ``init`` may begin anew. Gradients are not averaged by themselves after it either."""
    state.end()


def is_initialized() -> bool:
    """Whether ``init`` was called, and ``shutdown`` not."""
    return state.begun


def _world() -> Any:
    if not state.begun:
        raise ValueError(NOT_INITIALIZED)
    return state.job.world


def rank() -> int:
    """This process's number, from 0."""
    return int(_world().rank)


def size() -> int:
    """The number of processes."""
    return int(_world().size)


def local_rank() -> int:
    """This process's number among those of its machine."""
    return int(_world().local_rank)


def local_size() -> int:
    """The number of processes on this machine."""
    return int(_world().local_size)


def _across() -> list[int]:
    """One rank of each machine: that with this process's number there."""
    world = _world()
    own = world.topology.node_of(world.rank).index(world.rank)
    return [node[own] for node in world.topology.nodes if len(node) > own]


def cross_rank() -> int:
    """The number of this machine, among those that have a process of this local rank."""
    return _across().index(_world().rank)


def cross_size() -> int:
    """The number of machines that have a process of this local rank."""
    return len(_across())


def is_homogeneous() -> bool:
    """Whether each machine has as many processes."""
    return len({len(node) for node in _world().topology.nodes}) == 1


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads: a job of several processes does not begin without."""
    return mpi_enabled()


def mpi_enabled() -> bool:
    """Whether the processes talk through MPI: a process alone does not."""
    return bool(_world().size > 1)


def mpi_built() -> bool:
    """Whether there is an mpi4py."""
    return importlib.util.find_spec("mpi4py") is not None


def gloo_enabled() -> bool:
    """False: there is none here."""
    _world()
    return False


def gloo_built() -> bool:
    """False: there is none here."""
    return False


def nccl_built() -> int:
    """0: there is none here."""
    return 0


def ddl_built() -> bool:
    """False: IBM's library is not used."""
    return False


def ccl_built() -> bool:
    """False: there is none here."""
    return False


def cuda_built() -> bool:
    """False: arrays are combined in the machine's memory."""
    return False


def rocm_built() -> bool:
    """False: arrays are combined in the machine's memory."""
    return False


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU."""
    import tensorflow as tf

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
]
