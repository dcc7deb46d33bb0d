"""Collectives: allreduce, allgather, broadcast, alltoall and others on tensors, with Horovod's derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.graph.derivatives import differentiable, nothing_after
from tfdist.graph.markers import times
from tfdist.horovod._operation import Operation, derivative_name
from tfdist.horovod._state import state
from tfdist.horovod.compression import Compression
from tfdist.horovod.ops import Adasum, Average, ReduceOp, Sum, op_of
from tfdist.horovod.process_sets import global_process_set, number_of

Scales = tuple[float, float]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor element by element over the ranks. Its gradient is reduced in the same way.

    Collective: the process set's ranks; operations of different names in any order.

    Args:
      tensor: graph or eager tensor, array or number, the same shape and dtype on all ranks; or ``tf.IndexedSlices``.
      average: older argument, now ``op``: True for ``Average``, False for ``Sum``.
      device_dense: has no meaning here.
      device_sparse: has no meaning here.
      compression: compression for the exchange, from ``Compression`` or a subclass of ``Compressor``.
      op: a ``ReduceOp``; None for ``Average``. Averages of integer tensors are rounded towards zero.
      prescale_factor: factor of each rank's tensor, before the reduction.
      postscale_factor: factor of the result.
      name: name by which the ranks match their operations; None to derive it from the graph or from the call's number.
      process_set: the process set that takes part.
      ignore_name_scope: do not prefix the name with the graph's name scope.

    Returns:
      Tensor of the same shape and dtype. For slices: slices with the rows of all ranks, in the order of the ranks.
      Averaged slices of integers become floating-point numbers, as in Horovod.

    Raises:
      ValueError: an unknown op, or both ``op`` and ``average``.
      NotImplementedError: slices with another op than Sum and Average, or with scaling factors; Adasum on a number of
        ranks that is no power of two.
      tf.errors.FailedPreconditionError: on all ranks: the ranks' shapes, dtypes or operations differ.
      tf.errors.InvalidArgumentError: an unknown process set, or an operation of this name is under way.
    """
    (result,) = grouped_allreduce(
        [tensor], average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor,
        process_set, ignore_name_scope, name,
    )  # fmt: skip
    return result


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors over the ranks in one operation: see ``allreduce``."""
    how, scales = op_of(op, average), (float(prescale_factor), float(postscale_factor))
    if any(isinstance(t, tf.IndexedSlices) for t in tensors):  # slices need an operation of their own
        if len(tensors) == 1:
            return [_slices(tensors[0], how, scales, name, process_set, ignore_name_scope)]
        return [
            allreduce(
                t, compression=compression, op=how, prescale_factor=scales[0], postscale_factor=scales[1],
                name=name and f"{name}.{i}", process_set=process_set, ignore_name_scope=ignore_name_scope,
            )
            for i, t in enumerate(tensors)
        ]  # fmt: skip
    packed = [compression.compress(tf.convert_to_tensor(t)) for t in tensors]
    reduced = _reduced("allreduce", [t for t, _ in packed], how, scales, name, process_set, ignore_name_scope)
    return [compression.decompress(t, context) for t, (_, context) in zip(reduced, packed, strict=True)]


def _slices(
    slices: tf.IndexedSlices, how: ReduceOp, scales: Scales, name: str | None, process_set: Any, alone: bool
) -> Any:
    if how not in (Average, Sum):
        raise NotImplementedError(
            f"{how.name} of tf.IndexedSlices: only Sum and Average are supported; for another op make them dense "
            "(tf.convert_to_tensor, or sparse_as_dense=True)"
        )
    if scales != (1.0, 1.0):
        raise NotImplementedError(f"prescale and postscale factors {scales} with tf.IndexedSlices: make them dense")
    values, indices = grouped_allgather([slices.values, slices.indices], name, alone, process_set)
    if how == Average:
        values = values / tf.cast(len(state.members(number_of(process_set)).ranks), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _each(tensors: Sequence[tf.Tensor], results: Callable[[list[Any]], list[Any]], backward: Any) -> list[Any]:
    """Return results that are computed together; ``backward(number, upstream)`` is the derivative of each one."""
    found = results([tf.stop_gradient(t) for t in tensors])

    def one(number: int) -> Any:
        return differentiable(tensors[number], lambda _: found[number], lambda upstream: backward(number, upstream))

    return [one(number) for number in range(len(tensors))]


def _reduced(
    kind: Any, tensors: Sequence[tf.Tensor], how: ReduceOp, scales: Scales, name: str | None, process_set: Any,
    alone: bool,
) -> list[tf.Tensor]:  # fmt: skip
    operation = Operation(kind, name, process_set, tensors, alone)
    size = operation.size
    if how == Adasum and (kind == "reducescatter" or size & (size - 1)):
        raise NotImplementedError(
            f"Adasum by {kind} on {size} ranks: use allreduce, on a number of ranks that is a power of two"
        )

    def results(own: list[Any]) -> list[Any]:
        found = operation.run([_scaled(t, scales[0]) for t in own], op=how.name, scales=scales)
        return [_scaled(t, scales[1]) for t in found]

    def backward(number: int, upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient.{number}")
        if kind == "allreduce":
            return _reduced(kind, [upstream], how, scales, of, process_set, True)[0]
        factor = (size if how == Sum else 1) * scales[0] * scales[1]
        return allgather(upstream * tf.cast(factor, upstream.dtype), of, True, process_set)

    return _each(tensors, results, backward)


def _scaled(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """Return the scaled tensor in its dtype. Integers are rounded towards zero."""
    if factor == 1:
        return tensor
    real = tensor.dtype.is_floating or tensor.dtype.is_complex
    return tf.cast(times(tensor if real else tf.cast(tensor, tf.float64), factor), tensor.dtype)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    name: str | None = None,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over the ranks; each rank gets its part of the rows. The first parts may be one row longer.

    Collective: the process set's ranks. Arguments and errors: see ``allreduce``.
    """
    (result,) = grouped_reducescatter(
        [tensor], compression=compression, op=op, process_set=process_set, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, name=name, ignore_name_scope=ignore_name_scope,
    )  # fmt: skip
    return result


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Reduce-scatter several tensors in one operation: see ``reducescatter``."""
    packed = [compression.compress(tf.convert_to_tensor(t)) for t in tensors]
    scales = (float(prescale_factor), float(postscale_factor))
    own, how = [t for t, _ in packed], op_of(op, None)
    reduced = _reduced("reducescatter", own, how, scales, name, process_set, ignore_name_scope)
    return [compression.decompress(t, context) for t, (_, context) in zip(reduced, packed, strict=True)]


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = global_process_set
) -> Any:
    """Return the rows of all ranks, in the order of the ranks.

    The gradient is averaged over the ranks, and each rank gets the part for its rows.

    Collective: the process set's ranks.

    Args:
      tensor: [rows, …], any number of rows on each rank; other dimensions and dtype as on all ranks.
      name: see ``allreduce``.
      ignore_name_scope: see ``allreduce``.
      process_set: the process set that takes part.

    Raises:
      tf.errors.FailedPreconditionError: on all ranks: the ranks' dimensions or dtypes differ.
      tf.errors.InvalidArgumentError: a scalar, an unknown process set, or an operation of this name is under way.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> list[Any]:
    """All-gather several tensors in one operation: see ``allgather``."""
    own = [tf.convert_to_tensor(t) for t in tensors]
    operation = Operation("allgather", name, process_set, own, ignore_name_scope)

    def backward(number: int, upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient.{number}")
        mean = _reduced("allreduce", [upstream], Average, (1.0, 1.0), of, process_set, True)[0]
        mine = tf.shape(own[number])[:1]
        rows = allgather(mine, f"{of}.rows", True, process_set)
        start = tf.reduce_sum(rows[: operation.rank])
        return mean[start : start + mine[0]]

    return _each(own, operation.run, backward)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Return the root rank's tensor. The root's gradient is the average over the ranks; the others' is zero.

    Collective: the process set's ranks.

    Args:
      tensor: tensor of the same shape and dtype on all ranks.
      root_rank: rank in the job (also with a process set) that has the tensor.
      name: see ``allreduce``.
      ignore_name_scope: see ``allreduce``.
      process_set: the process set that takes part.

    Raises:
      tf.errors.FailedPreconditionError: on all ranks: the ranks' shapes, dtypes or root ranks differ.
      tf.errors.InvalidArgumentError: on all ranks: the root is not in the process set. On this rank: an unknown process
        set, or an operation of this name is under way.
    """
    tensor = tf.convert_to_tensor(tensor)
    operation = Operation("broadcast", name, process_set, [tensor], ignore_name_scope)

    def backward(upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient")
        mean = _reduced("allreduce", [upstream], Average, (1.0, 1.0), of, process_set, True)[0]
        return mean if state.job.world.rank == root_rank else nothing_after(mean)

    return differentiable(tensor, lambda own: operation.run([own], root=root_rank)[0], backward)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Send part i of each rank's rows to rank i. The gradients of the rows go back to the rank that sent them.

    Collective: the process set's ranks.

    Args:
      tensor: [rows, …]; other dimensions and dtype as on all ranks.
      splits: integers [ranks], the number of rows for each rank; None for equal parts.
      name: see ``allreduce``.
      ignore_name_scope: see ``allreduce``.
      process_set: the process set that takes part.

    Returns:
      The rows received, in the order of the ranks; with ``splits`` also int32 [ranks], the number of rows from each.

    Raises:
      tf.errors.FailedPreconditionError: on all ranks: the ranks' dimensions or dtypes differ.
      tf.errors.InvalidArgumentError: on all ranks: splits that do not add up to the rows, or rows that cannot be split
        equally. On this rank: an unknown process set, or an operation of this name is under way.
    """
    tensor = tf.convert_to_tensor(tensor)
    operation = Operation("alltoall", name, process_set, [tensor], ignore_name_scope)
    size = operation.size
    given = tf.fill([size], tf.reduce_sum(tf.shape(tensor)[:1]) // size) if splits is None else splits
    given = tf.cast(tf.convert_to_tensor(given), tf.int64)
    counts: list[Any] = []

    def wrong(arrays: Sequence[np.ndarray]) -> str:
        rows, parts = len(arrays[0]) if arrays[0].ndim else 0, arrays[1]
        if parts.shape == (size,) and parts.sum() == rows and (parts >= 0).all():
            return ""
        if splits is None:
            return f"{rows} rows cannot be split equally over {size} ranks: give splits"
        return f"splits={parts.tolist()} must be {size} counts, one a rank, that add up to the {rows} rows"

    def forward(own: Any) -> Any:
        received, count = operation.run([own, given], wrong)
        counts.append(count)
        return received

    def backward(upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient")
        return alltoall(upstream, counts[0], of, True, process_set)[0]

    received = differentiable(tensor, forward, backward)
    return received if splits is None else (received, tf.cast(counts[0], tf.int32))


__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]
