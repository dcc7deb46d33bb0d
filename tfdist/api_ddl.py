"""DDL names: functions of IBM's DDL for TensorFlow. Its scripts run with ``import tfdist as ddl``.

``rank``, ``size``, ``local_rank``, ``enable_bcast`` and ``disable_bcast`` are in ``api``, the callbacks in
``ddl_keras``. Gradients are averaged without these functions. If a script reduces gradients here and an optimizer
applies them, the ranks exchange them once, and the optimizer applies them unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import tensorflow as tf

from tfdist.compat.graphs import control_flow, is_symbolic
from tfdist.core import ddl_options
from tfdist.core.log import announce, set_log_level
from tfdist.core.reduce_ops import Op
from tfdist.core.settings import IN_THE_GRAPH
from tfdist.gradients import marks, rewrite
from tfdist.graph import function_state
from tfdist.graph.markers import times
from tfdist.graph.tensor_collectives import TensorCollectives
from tfdist.start import process

DdlOp = Literal["avg", "sum"]

_OPS: dict[str, Op] = {"avg": "mean", "sum": "sum"}
_LAST = "_tfdist_last_bcast"  # attribute of a session's graph: the last broadcast that was built

_process = process()
_job = _process.job
_world = _job.world


def init(options: str = "") -> None:
    """Apply DDL's options, as the import does with the environment variable ``DDL_OPTIONS``.

    The ranks are connected already when tfdist is imported. The number of ranks in ``-mode`` is compared with that of
    the job, and its letter chooses an engine unless gradients were exchanged before. ``-dbg_level`` sets the log
    level, and ``-dump_iter`` the steps of a table of waits. Other options have no effect, which rank 0 logs once.

    Args:
      options: such as ``-mode p:4x1 -dump_iter 100``; the same on all ranks.

    Raises:
      TypeError: ``options`` is not a string.

    Example::

        ddl.init("-mode r:4x1")  # after: import tfdist as ddl
    """
    if not isinstance(options, str):
        raise TypeError(
            f"ddl.init(options={options!r}) on rank {_world.rank}: options are a string such as '-mode r:4x1', or are "
            "left out"
        )
    ddl_options.tell(options, ddl_options.INIT, _world.size)
    before = _job.switches.settings
    settings = ddl_options.applied(before, options, ddl_options.INIT, a_gpu_each=False)
    late = _job.engines.choice is not None or {before.engine, settings.engine} & {*IN_THE_GRAPH}
    if settings.engine != before.engine and late:
        announce(
            f"ddl.init: {options}: too late for the engine {settings.engine}. Set DDL_OPTIONS before tfdist is imported"
        )
        settings = dataclasses.replace(settings, engine=before.engine)
    _job.switches.settings = settings
    if settings.log_level != before.log_level:
        set_log_level(settings.log_level)


def num_hosts() -> int:
    """Return the number of hosts of this job.

    Example:
      >>> tfdist.num_hosts() <= tfdist.size()
      True
    """
    return len(_world.topology.nodes)


@functools.cache
def _collectives() -> TensorCollectives:
    return TensorCollectives(_job, _world)


def bcast(init_val_tensor: Any, root: int = 0) -> Any:
    """Return one rank's value on every rank, above all initial values.

    Variables of a training graph begin with rank 0's values without this call, unless ``disable_bcast()`` was called.
    In a session's graph, calls run in the order in which they were built.

    Collective: all ranks, in the same order.

    Args:
      init_val_tensor: see ``tfdist.broadcast``.
      root: rank that sends its value.

    Example:
      >>> value = tfdist.bcast(tf.constant(2.0))
      >>> float(value)
      2.0
    """
    value = tf.convert_to_tensor(init_val_tensor) if isinstance(init_val_tensor, tf.Variable) else init_val_tensor
    if not (isinstance(value, tf.Tensor) and is_symbolic(value) and function_state.in_session()):
        return _collectives().broadcast(value, root)
    graph = tf.compat.v1.get_default_graph()
    if control_flow(graph) is not None:  # operations outside a condition or loop cannot depend on one inside
        return _collectives().broadcast(value, root)
    # One run of an initialiser executes all broadcasts. TensorFlow would start them in another order on each rank.
    with tf.control_dependencies(getattr(graph, _LAST, [])):
        value = tf.identity(value)
    result = _collectives().broadcast(value, root)
    setattr(graph, _LAST, [result.op])
    return result


def allreduce_n(tensors: Iterable[Any], op: DdlOp = "avg") -> list[Any]:
    """Combine tensors, above all gradients, element by element over the ranks, in one exchange.

    In graphs and functions, ``tf.gradients`` returns each rank's own gradients. After this call, all operations that
    read these gradients read their average instead. Gradients that the script has changed are combined as they are
    given. An eager tape returns averages already; ``sum`` multiplies them by the number of ranks. What an optimizer
    applies of the results, also after clipping, is what one process with all batches would apply.

    Unlike the results of ``tfdist.all_reduce``, these results have no gradients.

    Collective: all ranks, with the same dtypes and shapes in the same order. Inside ``alone`` tensors stay unchanged.

    Args:
      tensors: graph or eager tensors, arrays or numbers; None stays None. ``IndexedSlices`` that are unchanged
        gradients stay slices. Other slices become dense.
      op: ``avg`` (floating-point and complex only) or ``sum``.

    Returns:
      The combined tensors, in the same order.

    Raises:
      ValueError: an unknown ``op``, the average of integers, or strings.
      DisagreementError: the ranks have different dtypes or shapes.

    Example:
      >>> first, second = tfdist.allreduce_n([tf.constant(1.0), None])
      >>> float(first)
      1.0
    """
    given = list(tensors)
    if op not in _OPS:
        raise ValueError(
            f"op={op!r} in ddl.allreduce_n on rank {_world.rank}: it is 'avg' or 'sum' (tfdist.all_reduce has min, max "
            "and product, too)"
        )
    chosen = [i for i, value in enumerate(given) if value is not None]
    own = [_tensor(given[i]) for i in chosen]
    for i, value in zip(chosen, own if _job.switches.alone_depth else _reduced(own, op), strict=True):
        given[i] = value
    return given


def grads_reduce(grads_and_vars: Iterable[tuple[Any, Any]], average: bool = True) -> list[tuple[Any, Any]]:
    """Combine gradients over the ranks with ``allreduce_n``, and return pairs for ``apply_gradients``.

    Collective: all ranks, with the same variables in the same order.

    Args:
      grads_and_vars: pairs of a gradient, or None, and a variable.
      average: True for the mean over the ranks, False for the sum.

    Example:
      >>> with tf.Graph().as_default():
      ...     weight, optimizer = tf.compat.v1.get_variable("w", []), tf.compat.v1.train.GradientDescentOptimizer(0.1)
      ...     pairs = optimizer.compute_gradients(weight * weight, [weight])
      ...     train = optimizer.apply_gradients(tfdist.grads_reduce(pairs))
    """
    pairs = list(grads_and_vars)
    reduced = allreduce_n([gradient for gradient, _ in pairs], "avg" if average else "sum")
    return [(gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)]


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def _reduced(own: Sequence[Any], op: DdlOp) -> list[Any]:
    averages = _averages_among(own)
    result = [times(v, _world.size) if known and op == "sum" else v for v, known in zip(own, averages, strict=True)]
    rest = [i for i, known in enumerate(averages) if not known]
    dense = [tf.convert_to_tensor(own[i]) for i in rest]
    trains = _world.size > 1 and marks.stay_own(dense)
    for i, value in zip(rest, _collectives().all_reduce_together(dense, _OPS[op], trains), strict=True):
        result[i] = value
    return result


def _averages_among(own: Sequence[Any]) -> list[bool]:
    """Return for each tensor whether it is an average now: an unchanged gradient."""
    if _world.size == 1 or not own:
        return [isinstance(value, tf.IndexedSlices) for value in own]  # True keeps slices, which need not become dense
    if not tf.executing_eagerly():
        return rewrite.average_unchanged(own, _job)
    return [_process.steps.eager.is_average(value) for value in own]


__all__ = ["allreduce_n", "bcast", "grads_reduce", "init", "num_hosts"]
