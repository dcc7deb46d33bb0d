"""The names of IBM's DDL for TensorFlow that have no other one here: with ``import tfdist as ddl`` its scripts read on.

``rank``, ``size``, ``local_rank``, ``enable_bcast`` and ``disable_bcast`` are in ``api``, the callbacks in
``ddl_keras``. Gradients need none of this to be averaged: where an optimizer applies what is reduced here, the ranks
exchange once, and it is applied as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import tensorflow as tf

from tfdist.compat.graphs import control_flow, is_symbolic
from tfdist.core.ddl_options import understand
from tfdist.core.reduce_ops import Op
from tfdist.graph import function_state
from tfdist.graph.markers import times
from tfdist.graph.tensor_collectives import TensorCollectives
from tfdist.start import process
from tfdist.training import gradient_rewrite

DdlOp = Literal["avg", "sum"]

_OPS: dict[str, Op] = {"avg": "mean", "sum": "sum"}
_LAST = "_tfdist_last_bcast"  # of a session's graph

_process = process()
_job = _process.job
_world = _job.world


def init(options: str = "") -> None:
    """Understand DDL's options, as the import does those in the environment variable ``DDL_OPTIONS``.

    The ranks have met already. The number of ranks that ``-mode`` names is compared with the job's; what else is there
    has no meaning here. Rank 0 says so, once.

    Args:
      options: such as ``-mode r:4x1``.

    Raises:
      TypeError: they are no string.
    """
    if not isinstance(options, str):
        raise TypeError(
            f"ddl.init(options={options!r}) on rank {_world.rank}: options are a string such as '-mode r:4x1', or are "
            "left out"
        )
    understand(options, "ddl.init", _world.size)


def num_hosts() -> int:
    """The number of machines that the ranks are on."""
    return len(_world.topology.nodes)


@functools.cache
def _collectives() -> TensorCollectives:
    return TensorCollectives(_job, _world)


def bcast(init_val_tensor: Any, root: int = 0) -> Any:
    """One rank's value on every rank; of initial values above all.

    Variables of a training graph begin with rank 0's values without it, unless ``disable_bcast()`` was called. In a
    session's graph those that were built before are executed before.

    Collective: all ranks, in the same order.

    Args:
      init_val_tensor: see ``tfdist.broadcast``.
      root: whose.
    """
    value = tf.convert_to_tensor(init_val_tensor) if isinstance(init_val_tensor, tf.Variable) else init_val_tensor
    if not (isinstance(value, tf.Tensor) and is_symbolic(value) and function_state.in_session()):
        return _collectives().broadcast(value, root)
    graph = tf.compat.v1.get_default_graph()
    if control_flow(graph) is not None:  # nothing outside can be made to wait for it
        return _collectives().broadcast(value, root)
    # One run of an initialiser reaches all of them. TensorFlow would begin them in another order on each rank.
    with tf.control_dependencies(getattr(graph, _LAST, [])):
        value = tf.identity(value)
    result = _collectives().broadcast(value, root)
    setattr(graph, _LAST, [result.op])
    return result


def allreduce_n(tensors: Iterable[Any], op: DdlOp = "avg") -> list[Any]:
    """Combine tensors, gradients above all, element by element over the ranks; all of them in one exchange.

    What is combined are the values that are given. In graphs and functions gradients of variables are each rank's own;
    those that are given as they were made show their average from then on, wherever else they are looked at. Eagerly a
    tape hands out averages, and their sum is that times the number of ranks. What an optimizer applies of the results,
    clipped say, is what one process with all batches would apply.

    ::

        gradients, variables = zip(*optimizer.compute_gradients(loss))
        train = optimizer.apply_gradients(zip(ddl.allreduce_n(gradients), variables))

    Unlike those of ``tfdist.all_reduce`` the results have no derivatives.

    Collective: all ranks, with the same dtypes and shapes in the same order (inside ``alone`` they stay as they are).

    Args:
      tensors: in a graph or eager, or arrays or numbers; None stays None. ``IndexedSlices`` that are gradients as they
        were made stay slices, and others become dense.
      op: ``avg`` (floating-point and complex only) or ``sum``.

    Returns:
      As many tensors, in the same order.

    Raises:
      ValueError: another ``op``, the average of integers, or strings.
      DisagreementError: the ranks bring different dtypes or shapes.
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
    """Gradients combined over the ranks, as by ``allreduce_n``, with their variables: what an optimizer is to apply.

    ::

        train = optimizer.apply_gradients(ddl.grads_reduce(optimizer.compute_gradients(loss)))

    Collective: all ranks, with the same variables in the same order.

    Args:
      grads_and_vars: pairs of a gradient, or None, and a variable.
      average: the mean over the ranks; else their sum.
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
    for i, value in zip(rest, _collectives().all_reduce_together(dense, _OPS[op]), strict=True):
        result[i] = value
    return result


def _averages_among(own: Sequence[Any]) -> list[bool]:
    """Which of these hold averages now: gradients as they were made. Collective: all ranks."""
    if _world.size == 1 or not own:
        return [isinstance(value, tf.IndexedSlices) for value in own]  # no reason to make them dense
    if not tf.executing_eagerly():
        return gradient_rewrite.averaged_themselves(own, _job)
    floating = all(value.dtype.is_floating for value in own)
    return [floating and _process.steps.eager.same(own, "tensors that are reduced eagerly")] * len(own)


__all__ = ["allreduce_n", "bcast", "grads_reduce", "init", "num_hosts"]
