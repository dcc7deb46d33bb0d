"""A list of gradients -> their averages over the ranks, in the form they came in: None, dense, or slices.

Slices stay slices: the union of the rows touched on any rank, each once. A dense average in their place would change
the training, since the sparse updates of momentum and RMSProp leave untouched rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import tensorflow as tf

from tfdist.engine import buckets
from tfdist.engine.all_reduce import Reduction
from tfdist.engine.collective import Collective
from tfdist.engine.sparse_rows import Rows, Table, Way
from tfdist.graph.job import Job
from tfdist.graph.op_builder import Exchanges, signature

Gradient: TypeAlias = Any  # tf.Tensor | tf.IndexedSlices

_COMPRESSED = {"none": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}


def average(gradients: Sequence[Gradient], names: Sequence[str], name: str, job: Job) -> list[Gradient]:
    """Build one fused, ordered average in the current default graph.

    Args:
      gradients: in the same order on all ranks; tensors of any float or complex dtype, or IndexedSlices.
      names: of their variables.
      name: of the whole, unique in its graph.
      job: the ranks and settings.

    Returns:
      The averages, with the dtypes and static shapes of the arguments; slices merged.
    """
    dense = [i for i, g in enumerate(gradients) if isinstance(g, tf.Tensor)]
    sparse = [i for i, g in enumerate(gradients) if not isinstance(g, tf.Tensor)]
    plan = [signature("gradient", names[i], gradients[i]) for i in dense]
    plan += [signature("slices for", names[i], _rows(gradients[i])) for i in sparse]
    exchanges = Exchanges(Collective(name, plan, job, averages=True), job.broadcasts)

    wire = {i: _to_wire(gradients[i], job) for i in dense}
    items = [buckets.Item(wire[i].dtype.name, _size_bytes(wire[i])) for i in dense]
    groups = [[dense[i] for i in b] for b in buckets.plan(items, int(job.settings.bucket_mb * 2**20))]
    for number, members in enumerate(groups):
        tensors = [wire[i] for i in members]
        what = f"bucket {number} ({few([names[i] for i in members])})"
        exchanges.add(reduction(what, "mean", tensors, shared=True), tensors, [_spec(t) for t in tensors])
    if sparse:
        merged = [merge(gradients[i]) for i in sparse]
        flat = [t for s in merged for t in (s.indices, _to_wire(s.values, job))]
        tables = [_table(names[i], gradients[i], flat[2 * k + 1], job) for k, i in enumerate(sparse)]
        what = f"rows of {few([names[i] for i in sparse])}"
        exchanges.add(Rows(what, tables), flat, [_unknown_rows(t) for t in flat])

    built = exchanges.build()
    results: dict[int, Gradient] = {}
    for members, averages in zip(groups, built, strict=False):
        results.update({i: tf.cast(t, gradients[i].dtype) for i, t in zip(members, averages, strict=True)})
    for k, i in enumerate(sparse):
        indices, values = built[-1][2 * k : 2 * k + 2]
        results[i] = tf.IndexedSlices(tf.cast(values, gradients[i].dtype), indices, gradients[i].dense_shape)
    return [results[i] for i in range(len(gradients))]


def reduction(what: str, op: Any, tensors: Sequence[tf.Tensor], shared: bool = False) -> Reduction:
    """The exchange of tensors of one dtype."""
    sizes = [t.shape.num_elements() for t in tensors]
    known = [s for s in sizes if s is not None]
    dtype = np.dtype(tensors[0].dtype.as_numpy_dtype)
    return Reduction(what, op, dtype, known if len(known) == len(sizes) else None, shared)


def _to_wire(tensor: tf.Tensor, job: Job) -> tf.Tensor:
    """The tensor in the dtype in which it travels; narrow ones are added in float32."""
    return tf.cast(tensor, _COMPRESSED[job.settings.compression]) if tensor.dtype == tf.float32 else tensor


def _table(name: str, slices: tf.IndexedSlices, values: tf.Tensor, job: Job) -> Table:
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return Table(
        name,
        None if shape is None else int(shape[0]),
        job.sparse_ways.get(name, _way(job)),
        np.dtype(slices.indices.dtype.as_numpy_dtype),
        np.dtype(values.dtype.as_numpy_dtype),
        tuple(slices.values.shape[1:].as_list()),
    )


def _way(job: Job) -> Way:
    return cast("Way", job.settings.sparse)


def _spec(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _unknown_rows(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def merge(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Each row once, duplicates added.

    Args:
      slices: values [rows, …], indices [rows].

    Returns:
      values [distinct rows, …] in the order of first occurrence.
    """
    indices, where = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, where, tf.size(indices))
    values.set_shape([None, *slices.values.shape[1:]])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _rows(slices: Any) -> tf.Tensor:
    """A stand-in for the plan: the number of rows differs between ranks, their shape must not."""
    return tf.TensorSpec([None, *slices.values.shape[1:]], slices.values.dtype)


def _size_bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def few(names: Sequence[str]) -> str:
    """So many names as a message can hold."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"
