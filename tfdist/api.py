"""Calls for scripts, without collectives and updates: rank, size, shard, configure, broadcast_variables, abort …"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tfdist.core import exclusions
from tfdist.core.log import announce
from tfdist.graph import job
from tfdist.hooks.exits import abort as abort_job
from tfdist.start import process
from tfdist.training import data_shard
from tfdist.training.data_shard import Remainder

if TYPE_CHECKING:
    from tfdist.engine.sparse_rows import SparseMode

_process = process()
_job = _process.job
_world = _job.world


def rank() -> int:
    """Return the rank of this process, from 0.

    Example:
      >>> tfdist.rank() < tfdist.size()
      True
    """
    return _world.rank


def size() -> int:
    """Return the number of ranks of this job.

    Example:
      >>> rate = 0.1 * tfdist.size()
    """
    return _world.size


def local_rank() -> int:
    """Return the number of this process among the ranks of its host, from 0.

    Example:
      >>> tfdist.local_rank() < tfdist.local_size()
      True
    """
    return _world.local_rank


def local_size() -> int:
    """Return the number of ranks on this host.

    Example:
      >>> tfdist.local_size() <= tfdist.size()
      True
    """
    return _world.local_size


def enable_broadcast() -> AbstractContextManager[object]:
    """Give rank 0's initial values to the training graphs that are built from now on (the default).

    As a context manager it restores the previous state at the end.

    Example:
      >>> with tfdist.enable_broadcast():
      ...     weight = tf.Variable(1.0)
    """
    return job.broadcasting(_job.switches, True)


def disable_broadcast() -> AbstractContextManager[object]:
    """Keep each rank's own initial values in the graphs that are built from now on. Gradients are still averaged.

    As a context manager it restores the previous state at the end.

    Example:
      >>> with tfdist.disable_broadcast():
      ...     weight = tf.Variable(float(tfdist.rank()))
    """
    return job.broadcasting(_job.switches, False)


enable_bcast = enable_broadcast
disable_bcast = disable_broadcast


def uninstall() -> None:
    """Undo the changes to TensorFlow. Graphs that contain exchanges keep them, but can no longer be started.

    Example::

        tfdist.uninstall()
    """
    _process.uninstall()


def shard(data: Any, remainder: Remainder = "drop") -> Any:
    """Return this rank's shard of a dataset or sequence: elements rank, rank + size, …, equally many on every rank.

    Args:
      data: a ``tf.data.Dataset``, a sequence (array, list …), which is sliced along its first axis, or a structure as
        for ``model.fit``. A structure is a dict, or a tuple or list of arrays, tensors, dicts or None. Each part of a
        structure is sharded. Any other list is a sequence of examples. If the examples are arrays, combine them with
        ``np.stack`` first.
      remainder: ``drop`` leaves out the elements that do not fill a last round over the ranks; ``pad`` fills the
        round with elements from the beginning.

    Raises:
      ValueError: there are fewer elements than ranks. Or a dataset of unknown length is to be padded, the parts have
        unequal lengths, or a tuple or list contains arrays and other things.

    Example:
      >>> own = tfdist.shard(np.arange(8))
      >>> len(own) == 8 // tfdist.size()
      True
    """
    found = data_shard.shard(data, _world.rank, _world.size, remainder)
    if _world.size > 1:
        _job.data_comparison.shared(lambda: data_shard.digest(data))
    return found


def configure(
    sparse_as_dense: bool | None = None, sparse_ways: Mapping[str, SparseMode] | None = None, **settings: Any
) -> None:
    """Change settings for the graphs that are built from now on. All ranks must set the same values.

    A ``tf.function`` keeps the settings with which it was traced. Its next call raises a ``SettingsError`` if other
    settings are configured by then.

    Args:
      sparse_as_dense: return averages of IndexedSlices as dense tensors, as Horovod's option of this name does. The
        default keeps slices, because optimizers with momentum treat the two differently.
      sparse_ways: exchange of the rows of a variable's gradient, by variable name (with ``:0`` or without).
        ``auto``, ``dense`` and ``gather`` give the same result. ``unmerged`` returns the rows of all ranks one
        after the other.
      **settings: ``bucket_mb``, ``compression``, ``sparse``, ``accumulate_steps``, ``mixed_precision``,
        ``loss_scale...``, ``divergence``, ``sync``, ``larc...``, ``block_...``, as in the environment.

    Raises:
      SettingsError: an unknown setting, a value out of its range, a setting that only the environment has, or
        settings that contradict each other.

    Example:
      >>> tfdist.configure(sparse_as_dense=False, bucket_mb=64)
    """
    switches = _job.switches
    if sparse_as_dense is not None:
        switches.sparse_as_dense = bool(sparse_as_dense)
    for name, way in (sparse_ways or {}).items():
        switches.settings.configured(sparse=way)  # raises if the value is unknown
        switches.sparse_ways[name.removesuffix(":0")] = way
    switches.settings = switches.settings.configured(**settings)
    for line in switches.settings.without_effect(len(_world.topology.nodes)):
        announce(line)

    if _world.size == 1:
        _process.install_as_needed()


def join() -> int:
    """Wait, after this rank's last batch, until all ranks have joined; take part in their exchanges without gradients.

    Until then, gradients are averaged over the ranks that still train. At the end every rank has the variables of the
    lowest rank among those that trained longest.

    Collective: all ranks, each when its data end, and not inside another collective operation.

    Returns:
      The lowest of the ranks that trained longest.

    Raises:
      RuntimeError: the ranks train by local SGD (``TFDIST_SYNC``). Or a graph has an exchange that needs this rank's
        data, for example a broadcast in a step.

    Example::

        for batch in batches:
            session.run(train_op, {inputs: batch})
        tfdist.join()
    """
    if _world.size == 1:
        return 0
    if (sync := _job.switches.settings.sync) != "gradients":
        here = f"tfdist.join on rank {_world.rank}"
        raise RuntimeError(exclusions.LOCAL_AND_JOIN.told(f"TFDIST_SYNC is {sync!r}", here))
    from tfdist.training.join import join

    return join(_job, _process.steps.sessions)


def abort(message: str = "tfdist.abort was called", exit_code: int = 1) -> None:
    """Print one message and end all ranks.

    Args:
      message: what is wrong and what to do. If several ranks call this at about the same time, the lowest prints.
      exit_code: exit code of the whole job; not 0.

    Example::

        tfdist.abort("the loss is not finite: lower the learning rate")
    """
    abort_job(_world, message, exit_code)


def broadcast_variables(variables: Any, root: int = 0) -> None:
    """Set variables to the values of one rank, immediately.

    Training does this automatically before its first step, from rank 0. Call it for variables that change later.

    Collective: all ranks, with variables of the same dtypes and shapes in the same order.

    Args:
      variables: eager variables of TensorFlow or Keras, or an object with ``weights``, such as a model.
      root: rank that sends its values.

    Raises:
      DisagreementError: the ranks have different variables.

    Example:
      >>> weight = tf.Variable(float(tfdist.rank()))
      >>> tfdist.broadcast_variables([weight])
      >>> float(weight)
      0.0
    """
    from tfdist.replicas.eager_variables import variables_of

    if _world.size > 1:
        _process.steps.variables.take(variables_of(variables), root)


def average_variables(variables: Any) -> None:
    """Set variables to the mean over the ranks, immediately. Use: moving statistics of batch normalisation.

    Collective: all ranks, with variables of the same names, dtypes and shapes in the same order.

    Args:
      variables: eager variables of TensorFlow or Keras; or an object with ``non_trainable_weights``, such as a model,
        whose non-trainable weights are averaged. Variables that are not floating-point stay as they are.

    Raises:
      DisagreementError: the ranks have different variables.

    Example:
      >>> statistic = tf.Variable(float(tfdist.rank()))
      >>> tfdist.average_variables([statistic])
      >>> float(statistic) == (tfdist.size() - 1) / 2
      True
    """
    from tfdist.replicas.eager_variables import average_values, variables_of

    average_values(variables_of(variables, "non_trainable_weights"), _job)


def alone(reason: str) -> AbstractContextManager[None]:
    """Mark work that this rank does while the others wait. They report ``reason`` and keep waiting.

    Graphs, tapes and variables that are created inside this context belong to this rank alone.

    Example:
      >>> if tfdist.rank() == 0:
      ...     with tfdist.alone("evaluation"):
      ...         error = float(tf.reduce_sum([1.0, 2.0]))
    """
    return job.alone(_job, reason)
