"""Data-parallel training for TensorFlow: ``import tfdist``, then ``mpirun -n N python script.py``.

Importing this package rewrites training graphs: every variable starts with rank 0's value, and every gradient is
averaged over the ranks before anything else looks at it. Evaluation and inference graphs stay as they are. Started
without a launcher, it does nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping as _Mapping
from contextlib import AbstractContextManager as _AbstractContextManager
from typing import TYPE_CHECKING, Any

from tfdist._start import process as _start_process
from tfdist.communication import (
    Ranks,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    new_group,
    reduce_scatter,
)
from tfdist.core.settings import SettingsError
from tfdist.graph.job import BroadcastSwitch as _BroadcastSwitch
from tfdist.graph.job import alone as _alone
from tfdist.training.data_shard import Remainder as _Remainder
from tfdist.training.data_shard import shard as _shard
from tfdist.training.learning_rate import Rule as _Rule
from tfdist.training.learning_rate import scaled as _scaled
from tfdist.transport._stall_detection import PeerError
from tfdist.transport.interfaces import DisagreementError

if TYPE_CHECKING:
    from tfdist.engine.sparse_rows import Way as _Way

__version__ = "0.1.0"

_process = _start_process()
_job = _process.job
_world = _job.world


def rank() -> int:
    """This process's number, from 0."""
    return _world.rank


def size() -> int:
    """The number of processes that train together."""
    return _world.size


def local_rank() -> int:
    """This process's number among those on the same machine, from 0."""
    return _world.local_rank


def local_size() -> int:
    """The number of processes on this machine."""
    return _world.local_size


def enable_broadcast() -> _AbstractContextManager[None]:
    """Give the training graphs built from now on rank 0's initial values (the default).

    As a context manager it restores the previous state at the end.
    """
    return _BroadcastSwitch(_job, True)


def disable_broadcast() -> _AbstractContextManager[None]:
    """Leave the initial values of the graphs built from now on to each rank; gradients are still averaged.

    As a context manager it restores the previous state at the end::

        with tfdist.disable_broadcast():
            build_my_graph()
    """
    return _BroadcastSwitch(_job, False)


enable_bcast = enable_broadcast
disable_bcast = disable_broadcast


def uninstall() -> None:
    """Undo the changes to TensorFlow; graphs that hold communication keep it, but can no longer be started."""
    _process.uninstall()


def shard(data: Any, remainder: _Remainder = "drop") -> Any:
    """This rank's share of a dataset or sequence: elements rank, rank + size, …, the same number on every rank.

    Args:
      data: a ``tf.data.Dataset``, or anything that can be sliced along its first axis.
      remainder: ``drop`` leaves out the elements that do not fill a last round over the ranks; ``pad`` fills the
        round with elements from the beginning.

    Raises:
      ValueError: fewer elements than ranks, or a dataset of unknown length to be padded.
    """
    return _shard(data, _world.rank, _world.size, remainder)


def configure(
    sparse_as_dense: bool | None = None, sparse_ways: _Mapping[str, _Way] | None = None, **settings: Any
) -> None:
    """Change settings for the graphs built from now on; the same on all ranks.

    Args:
      sparse_as_dense: hand averages of IndexedSlices out as dense tensors, as Horovod's option of this name does. The
        default keeps slices, because optimizers with momentum treat the two differently.
      sparse_ways: by variable name (its operation's), how the rows of its gradient travel: ``auto``, ``dense`` or
        ``gather``; the result is the same.
      **settings: ``bucket_mb``, ``compression``, ``sparse``, as in the environment.

    Raises:
      SettingsError: an unknown setting, a value out of its range, or a setting that only the environment has.
    """
    if sparse_as_dense is not None:
        _job.sparse_as_dense = bool(sparse_as_dense)
    for name, way in (sparse_ways or {}).items():
        _job.settings.configured(sparse=way)  # checks it
        _job.sparse_ways[name] = way
    _job.settings = _job.settings.configured(**settings)


def join() -> int:
    """This rank has no more data: it takes part in the others' steps with nothing until they have none either.

    Gradients are meanwhile averaged over the ranks that still train. At the end every rank has the variables of one
    that trained longest.

    Collective: all ranks, each when its data end; not in the middle of anything else that is collective.

    Returns:
      The lowest of the ranks that trained longest.

    Raises:
      RuntimeError: a graph communicates in a way that needs this rank's data (a broadcast in a step, say).
    """
    from tfdist.training.join import join

    return join(_job)


def abort(message: str = "tfdist.abort was called", exit_code: int = 1) -> None:
    """Print one message and end all ranks.

    Args:
      message: what is wrong and what to do; of several ranks that call this at about the same time, the lowest prints.
      exit_code: of the whole job; not 0.
    """
    _process.abort(message, exit_code)


def broadcast_variables(variables: Any, root: int = 0) -> None:
    """Give variables one rank's values, at once.

    Training does so by itself before its first step, from rank 0; this is for what changes later.

    Collective: all ranks, with variables of the same dtypes and shapes in the same order.

    Args:
      variables: of ``tf.Variable`` or Keras, executing eagerly; or something that has ``weights``, such as a model.
      root: whose.

    Raises:
      DisagreementError: the ranks have different variables.
    """
    from tfdist.training.eager_variables import variables_of

    _job.take_values(variables_of(variables), root)


def average_variables(variables: Any) -> None:
    """Give variables the mean of all ranks' values, at once: moving statistics of batch normalisation, for example.

    Collective: all ranks, with variables of the same names, dtypes and shapes in the same order.

    Args:
      variables: of ``tf.Variable`` or Keras, executing eagerly; or something that has ``non_trainable_weights``, such
        as a model, of which those are meant. Others than floating-point ones stay as they are.

    Raises:
      DisagreementError: the ranks have different variables.
    """
    from tfdist.training.eager_variables import average_values, variables_of

    average_values(variables_of(variables, "non_trainable_weights"), _job)


def alone(reason: str) -> _AbstractContextManager[None]:
    """Mark work that this rank does while the others wait: they report ``reason`` and keep waiting.

    Graphs that are built, tapes that are opened and variables that are made meanwhile are this rank's own.

    ::

        if tfdist.rank() == 0:
            with tfdist.alone("evaluation"):
                evaluate()
    """
    return _alone(_job, reason)


def scale_learning_rate(learning_rate: Any, rule: _Rule = "linear", warmup_steps: int = 0) -> Any:
    """The learning rate for the batch of all ranks together.

    Args:
      learning_rate: of one process; a number or a tensor.
      rule: ``linear``: times the number of ranks; ``sqrt``: times its square root.
      warmup_steps: the rate grows linearly from ``learning_rate`` to the scaled one over so many global steps
        (``tf.compat.v1.train.get_or_create_global_step``), which makes it a tensor.

    Raises:
      ValueError: an unknown rule, or a negative number of steps.
    """
    return _scaled(learning_rate, _world.size, rule, warmup_steps)


__all__ = [
    "DisagreementError",
    "PeerError",
    "SettingsError",
    "Ranks",
    "abort",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "alone",
    "average_variables",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "configure",
    "disable_bcast",
    "disable_broadcast",
    "enable_bcast",
    "enable_broadcast",
    "join",
    "local_rank",
    "local_size",
    "new_group",
    "rank",
    "reduce_scatter",
    "scale_learning_rate",
    "shard",
    "size",
    "uninstall",
]
