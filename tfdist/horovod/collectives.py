"""Collectives: allreduce, allgather, broadcast, alltoall … of tensors, with Horovod's derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.graph.derivatives import differentiable, nothing_after
from tfdist.horovod._state import state
from tfdist.horovod._tensors import Operation, derivative_name, spec
from tfdist.horovod.compression import Compression
from tfdist.horovod.named.requests import Request, request, wrong_splits
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
    """Combine a tensor element by element over the ranks. Its derivative is combined in the same way.

    Collective: the process set's ranks, in any order of names.

    Args:
      tensor: graph or eager tensor, array or number, the same shape and dtype on all ranks; or ``tf.IndexedSlices``.
      average: older than ``op``: True for ``Average``, False for ``Sum``.
      device_dense: has no meaning here.
      device_sparse: has no meaning here.
      compression: how it travels.
      op: ``Average`` if neither is given; that of integers (tensors) is rounded towards zero.
      prescale_factor: by which each rank's tensor is multiplied before.
      postscale_factor: by which the result is multiplied.
      name: by which the ranks find each other; None: its own name in a graph, else by the number of the call.
      process_set: who takes part.
      ignore_name_scope: the name is not prefixed with the graph's scope.

    Returns:
      Tensor of the same shape and dtype; or slices, with the rows of all ranks, one after the other. Averaged slices of
      integers become floating-point numbers, as in Horovod.

    Raises:
      ValueError: another op, or both ``op`` and ``average``.
      NotImplementedError: slices with another op than Sum and Average, or with scaling factors; Adasum on a number of
        ranks that is no power of two.
      tf.errors.FailedPreconditionError: on all ranks: they bring different shapes, dtypes or operations.
      tf.errors.InvalidArgumentError: an unknown process set, or a name that is under way.
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
    """Likewise of several tensors, together."""
    how, scales = op_of(op, average), (float(prescale_factor), float(postscale_factor))
    slices = [i for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)]
    if slices:
        _check_slices(how, scales)
        names = {i: None if name is None else f"{name}.{i}" if len(tensors) > 1 else name for i in slices}
        found = {i: _slices(tensors[i], how, names[i], process_set, ignore_name_scope) for i in slices}
        rest = [i for i in range(len(tensors)) if i not in found]
        if rest:
            dense = grouped_allreduce(
                [tensors[i] for i in rest], compression=compression, op=how, process_set=process_set,
                ignore_name_scope=ignore_name_scope, name=name,
            )  # fmt: skip
            found.update(zip(rest, dense, strict=True))
        return [found[i] for i in range(len(tensors))]
    packed = [compression.compress(tf.convert_to_tensor(t)) for t in tensors]
    reduced = _reduced("allreduce", [t for t, _ in packed], how, scales, name, process_set, ignore_name_scope)
    return [compression.decompress(t, context) for t, (_, context) in zip(reduced, packed, strict=True)]


def _check_slices(how: ReduceOp, scales: Scales) -> None:
    if how not in (Average, Sum):
        raise NotImplementedError(
            f"{how.name} of tf.IndexedSlices: they are added or averaged; make them dense (tf.convert_to_tensor, or "
            "sparse_as_dense=True) for another op"
        )
    if scales != (1.0, 1.0):
        raise NotImplementedError(f"prescale and postscale factors {scales} with tf.IndexedSlices: make them dense")


def _slices(slices: tf.IndexedSlices, how: ReduceOp, name: str | None, process_set: Any, alone: bool) -> Any:
    values, indices = grouped_allgather([slices.values, slices.indices], name, alone, process_set)
    if how == Average:
        values = values / tf.cast(len(state.own(number_of(process_set))[0].ranks), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _each(tensors: Sequence[tf.Tensor], results: Callable[[list[Any]], list[Any]], backward: Any) -> list[Any]:
    """Results that are computed together, each with the derivative ``backward(number, upstream)`` of its own."""
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
            f"Adasum by {kind} on {size} ranks: it is defined for allreduce on a power of two of them"
        )
    outputs = [spec(t, rows=kind == "reducescatter") for t in tensors]

    def results(own: list[Any]) -> list[Any]:
        return operation.run(own, outputs, op=how.name, scales=scales)

    def backward(number: int, upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient.{number}")
        if kind == "allreduce":
            return _reduced(kind, [upstream], how, scales, of, process_set, True)[0]
        factor = (size if how == Sum else 1) * scales[0] * scales[1]
        return allgather(upstream * tf.cast(factor, upstream.dtype), of, True, process_set)

    return _each(tensors, results, backward)


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
    """Combine a tensor over the ranks; each gets its part of the rows: nearly equal ones, the first are longer.

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
    """Likewise of several tensors, together."""
    packed = [compression.compress(tf.convert_to_tensor(t)) for t in tensors]
    scales = (float(prescale_factor), float(postscale_factor))
    own, how = [t for t, _ in packed], op_of(op, None)
    reduced = _reduced("reducescatter", own, how, scales, name, process_set, ignore_name_scope)
    return [compression.decompress(t, context) for t, (_, context) in zip(reduced, packed, strict=True)]


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = global_process_set
) -> Any:
    """The rows of all ranks, one rank's after the other. Its derivative is the average of the ranks', this rank's rows.

    Collective: the process set's ranks.

    Args:
      tensor: [rows, …], any number of rows on each rank, the same other dimensions and dtype.
      name: see ``allreduce``.
      ignore_name_scope: see ``allreduce``.
      process_set: who takes part.

    Raises:
      tf.errors.FailedPreconditionError: on all ranks: they bring different dimensions or dtypes.
      tf.errors.InvalidArgumentError: a scalar, an unknown process set, or a name that is under way.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> list[Any]:
    """Likewise of several tensors, together."""
    own = [tf.convert_to_tensor(t) for t in tensors]
    operation = Operation("allgather", name, process_set, own, ignore_name_scope)

    def backward(number: int, upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient.{number}")
        mean = _reduced("allreduce", [upstream], Average, (1.0, 1.0), of, process_set, True)[0]
        mine = tf.shape(own[number])[:1]
        rows = allgather(mine, f"{of}.rows", True, process_set)
        start = tf.reduce_sum(rows[: operation.rank])
        return mean[start : start + mine[0]]

    return _each(own, lambda given: operation.run(given, [spec(t, rows=True) for t in own]), backward)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """One rank's tensor. Its derivative is the average of the ranks' on that rank, and zero on the others.

    Collective: the process set's ranks.

    Args:
      tensor: of the same shape and dtype on all ranks.
      root_rank: whose: its number in the job, in a process set too.
      name: see ``allreduce``.
      ignore_name_scope: see ``allreduce``.
      process_set: who takes part.

    Raises:
      tf.errors.FailedPreconditionError: on all ranks: they bring different shapes, dtypes or root ranks.
      tf.errors.InvalidArgumentError: on all ranks: the root is none of them; or an unknown process set, or a name that
        is under way.
    """
    tensor = tf.convert_to_tensor(tensor)
    operation = Operation("broadcast", name, process_set, [tensor], ignore_name_scope)
    root, wrong = operation.members.root(root_rank)

    def forward(own: Any) -> Any:
        return operation.run([own], [spec(own)], root=root, error=wrong)[0]

    def backward(upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient")
        mean = _reduced("allreduce", [upstream], Average, (1.0, 1.0), of, process_set, True)[0]
        return mean if operation.rank == root else nothing_after(mean)

    return differentiable(tensor, forward, backward)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Part i of every rank's rows to rank i. Its derivative goes back the same way.

    Collective: the process set's ranks.

    Args:
      tensor: [rows, …]; the same other dimensions and dtype on all ranks.
      splits: integers [ranks]: the rows for each; None: equally many.
      name: see ``allreduce``.
      ignore_name_scope: see ``allreduce``.
      process_set: who takes part.

    Returns:
      The rows received, one rank's after the other; with ``splits`` also int32 [ranks]: how many from each.

    Raises:
      tf.errors.FailedPreconditionError: on all ranks: they bring different dimensions or dtypes.
      tf.errors.InvalidArgumentError: on all ranks: splits that do not add up to the rows, or rows that cannot be split
        equally; or an unknown process set, or a name that is under way.
    """
    tensor = tf.convert_to_tensor(tensor)
    operation = Operation("alltoall", name, process_set, [tensor], ignore_name_scope)
    size = operation.size
    given = tf.convert_to_tensor([] if splits is None else splits)
    given = tf.cast(tf.convert_to_tensor(given), tf.int64)
    counts: list[Any] = []

    def make(arrays: Sequence[np.ndarray]) -> Request:
        array, parts = arrays
        rows = len(array) if array.ndim else 0
        error = wrong_splits(parts, rows, size, splits is None)
        if not error and splits is None:
            parts.resize([size], refcheck=False)
            parts[:] = rows // size
        return request("alltoall", operation.name, [array], error=error, in_graph=operation.in_graph)

    def forward(own: Any) -> Any:
        outputs = [spec(own, rows=True), tf.TensorSpec([size], tf.int64)]
        received, count = operation.run([own, given], outputs, make)
        counts.append(count)
        return received

    def backward(upstream: tf.Tensor) -> Any:
        of = derivative_name(f"{operation.name}.gradient")
        return alltoall(upstream, counts[0], of, True, process_set)[0]

    received = differentiable(tensor, forward, backward)
    return received if splits is None else (received, tf.cast(counts[0], tf.int32))
