"""Data-parallel training for TensorFlow: ``import tfdist``, then ``mpirun -n N python script.py``.

Importing this package rewrites training graphs: every variable starts with rank 0's value, and every gradient is
averaged over the ranks before anything else looks at it. Evaluation and inference graphs stay as they are. Started
without a launcher, it does nothing at all.
"""

from __future__ import annotations

import itertools as _itertools
from contextlib import AbstractContextManager as _AbstractContextManager
from typing import Any

from tfdist import _start
from tfdist.job import BroadcastSwitch as _BroadcastSwitch
from tfdist.learning_rate import Rule as _Rule
from tfdist.learning_rate import scaled as _scaled
from tfdist.presence import PeerError
from tfdist.settings import SettingsError
from tfdist.shards import Remainder as _Remainder
from tfdist.shards import shard as _shard
from tfdist.world import DisagreementError

__version__ = "0.1.0"

_process = _start.start()
_job = _process.job
_world = _job.world
_calls = _itertools.count(1)


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


def broadcast(value: Any) -> Any:
    """Rank 0's value on every rank.

    Collective: all ranks, in the same order.

    Args:
      value: a graph tensor (any dtype, the same static shape everywhere; the result is a tensor that needs every
        rank to run it), an eager tensor, or any Python or NumPy value that can be pickled (sent at once; only
        rank 0's is looked at).
    """
    if _world.size == 1:
        return value
    from tfdist import values

    return values.broadcast(value, _job, next(_calls))


def all_reduce(tensor: Any, op: str = "mean") -> Any:
    """The mean or sum over the ranks.

    Collective: all ranks, in the same order, with the same shape and dtype.

    Args:
      tensor: a graph tensor (the result is a tensor that needs every rank to run it), or an eager tensor, NumPy array
        or Python number (reduced at once; NumPy results).
      op: ``mean`` (floating-point and complex only) or ``sum``.

    Raises:
      ValueError: another ``op``, or the mean of integers.
      DisagreementError: the ranks bring different shapes or dtypes.
    """
    from tfdist import values

    return values.all_reduce(tensor, op, _job, next(_calls))


def barrier() -> None:
    """Wait until all ranks are here. Collective: all ranks."""
    _world.control.arrive(f"tfdist.barrier, call {next(_calls)}")


def abort(message: str = "tfdist.abort was called", exit_code: int = 1) -> None:
    """Print one message and end all ranks.

    Args:
      message: what is wrong and what to do; of several ranks that call this at about the same time, the lowest prints.
      exit_code: of the whole job; not 0.
    """
    _process.abort(message, exit_code)


def alone(reason: str) -> _AbstractContextManager[None]:
    """Mark work that this rank does while the others wait: they report ``reason`` and keep waiting.

    ::

        if tfdist.rank() == 0:
            with tfdist.alone("evaluation"):
                evaluate()
    """
    return _world.alone(reason)


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
    "abort",
    "all_reduce",
    "alone",
    "barrier",
    "broadcast",
    "disable_bcast",
    "disable_broadcast",
    "enable_bcast",
    "enable_broadcast",
    "local_rank",
    "local_size",
    "rank",
    "scale_learning_rate",
    "shard",
    "size",
    "uninstall",
]
