"""The calls of a script, but for collectives and updates: rank, size, shard, configure, broadcast_variables, abort …"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tfdist.core import exclusions
from tfdist.core.log import announce
from tfdist.graph import job
from tfdist.hooks.abort import abort as abort_job
from tfdist.start import process
from tfdist.training import data_shard
from tfdist.training.data_shard import Remainder

if TYPE_CHECKING:
    from tfdist.engine.sparse_rows import SparseMode

_process = process()
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


def enable_broadcast() -> AbstractContextManager[None]:
    """Give the training graphs built from now on rank 0's initial values (the default).

    As a context manager it restores the previous state at the end.
    """
    return job.BroadcastSwitch(_job.switches, True)


def disable_broadcast() -> AbstractContextManager[None]:
    """Leave the initial values of the graphs built from now on to each rank; gradients are still averaged.

    As a context manager it restores the previous state at the end::

        with tfdist.disable_broadcast():
            build_my_graph()
    """
    return job.BroadcastSwitch(_job.switches, False)


enable_bcast = enable_broadcast
disable_bcast = disable_broadcast


def uninstall() -> None:
    """Undo the changes to TensorFlow; graphs that hold communication keep it, but can no longer be started."""
    _process.uninstall()


def shard(data: Any, remainder: Remainder = "drop") -> Any:
    """This rank's share of a dataset or sequence: elements rank, rank + size, …, the same number on every rank.

    Args:
      data: a ``tf.data.Dataset``; anything that can be sliced along its first axis, such as an array or a list; or a
        structure as ``model.fit`` takes it, each of whose parts is shared so: a dict, or a tuple or list whose elements
        are arrays or tensors (or dicts of them, or None). A list of other things is a sequence of examples; one of
        arrays that are the examples wants ``np.stack`` first.
      remainder: ``drop`` leaves out the elements that do not fill a last round over the ranks; ``pad`` fills the
        round with elements from the beginning.

    Raises:
      ValueError: fewer elements than ranks, a dataset of unknown length to be padded, parts of unequal lengths, or a
        tuple or list of arrays and other things.
    """
    found = data_shard.shard(data, _world.rank, _world.size, remainder)
    if _world.size > 1:
        _job.data_comparison.shared(lambda: data_shard.digest(data))
    return found


def configure(
    sparse_as_dense: bool | None = None, sparse_ways: Mapping[str, SparseMode] | None = None, **settings: Any
) -> None:
    """Change settings for the graphs built from now on; the same on all ranks.

    A ``tf.function`` that has been traced keeps what it was built by: its next call is a ``SettingsError`` if that is
    not what is configured then.

    Args:
      sparse_as_dense: hand averages of IndexedSlices out as dense tensors, as Horovod's option of this name does. The
        default keeps slices, because optimizers with momentum treat the two differently.
      sparse_ways: by variable name (with ``:0`` or without), how the rows of its gradient travel: ``auto``, ``dense``
        or ``gather``, with the same result; or ``unmerged``: all ranks' rows one after the other.
      **settings: ``bucket_mb``, ``compression``, ``sparse``, ``accumulate_steps``, ``mixed_precision``,
        ``loss_scale...``, ``divergence``, ``sync``, ``block_...``, as in the environment.

    Raises:
      SettingsError: an unknown setting, a value out of its range, a setting that only the environment has, or
        settings that contradict each other.
    """
    switches = _job.switches
    if sparse_as_dense is not None:
        switches.sparse_as_dense = bool(sparse_as_dense)
    for name, way in (sparse_ways or {}).items():
        switches.settings.configured(sparse=way)  # checks it
        switches.sparse_ways[name.removesuffix(":0")] = way
    switches.settings = switches.settings.configured(**settings)
    for line in switches.settings.without_effect(len(_world.topology.nodes)):
        announce(line)

    if _world.size == 1:
        _process.install_as_needed()


def join() -> int:
    """This rank has no more data: it takes part in the others' steps with nothing until they have none either.

    Gradients are meanwhile averaged over the ranks that still train. At the end every rank has the variables of one
    that trained longest.

    Collective: all ranks, each when its data end; not in the middle of anything else that is collective.

    Returns:
      The lowest of the ranks that trained longest.

    Raises:
      RuntimeError: a graph communicates in a way that needs this rank's data (a broadcast in a step, say), or the
        ranks train by blocks.
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
      message: what is wrong and what to do; of several ranks that call this at about the same time, the lowest prints.
      exit_code: of the whole job; not 0.
    """
    abort_job(_world, message, exit_code)


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
    from tfdist.variables.eager_variables import variables_of

    if _world.size > 1:
        _process.steps.variables.take(variables_of(variables), root)


def average_variables(variables: Any) -> None:
    """Give variables the mean of all ranks' values, at once: moving statistics of batch normalisation, for example.

    Collective: all ranks, with variables of the same names, dtypes and shapes in the same order.

    Args:
      variables: of ``tf.Variable`` or Keras, executing eagerly; or something that has ``non_trainable_weights``, such
        as a model, of which those are meant. Others than floating-point ones stay as they are.

    Raises:
      DisagreementError: the ranks have different variables.
    """
    from tfdist.variables.eager_variables import average_values, variables_of

    average_values(variables_of(variables, "non_trainable_weights"), _job)


def alone(reason: str) -> AbstractContextManager[None]:
    """Mark work that this rank does while the others wait: they report ``reason`` and keep waiting.

    Graphs that are built, tapes that are opened and variables that are made meanwhile are this rank's own.

    ::

        if tfdist.rank() == 0:
            with tfdist.alone("evaluation"):
                evaluate()
    """
    return job.alone(_job, reason)
