"""A list of gradients -> their averages over the ranks, in the form they came in: None, dense, or slices.

Slices stay slices: the union of the rows touched on any rank, each once. A dense average in their place would change
the training, since the sparse updates of momentum and RMSProp leave untouched rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist import buckets, collectives
from tfdist.collectives import Collective, DenseReduction, Exchanges, SliceGathering, signature
from tfdist.settings import Settings
from tfdist.world import World

Gradient: TypeAlias = Any  # tf.Tensor | tf.IndexedSlices


def average(
    gradients: Sequence[Gradient],
    names: Sequence[str],
    name: str,
    world: World,
    settings: Settings,
    broadcasts: bool,
) -> list[Gradient]:
    """Build one fused, ordered average in the current default graph.

    Args:
      gradients: in the same order on all ranks; tensors of any float or complex dtype, or IndexedSlices.
      names: of their variables.
      name: of the whole, unique in its graph.
      world: the ranks.
      settings: the bucket size.
      broadcasts: whether rank 0's variables are to be sent before the first step.

    Returns:
      The averages, with the dtypes and static shapes of the arguments; slices merged.
    """
    dense = [i for i, g in enumerate(gradients) if isinstance(g, tf.Tensor)]
    sparse = [i for i, g in enumerate(gradients) if not isinstance(g, tf.Tensor)]
    plan = [signature("gradient", names[i], gradients[i]) for i in dense]
    plan += [signature("slices for", names[i], _rows(gradients[i])) for i in sparse]
    collective = Collective(name, plan, world)
    exchanges = Exchanges(collective, broadcasts)
    results: dict[int, Gradient] = {}

    wire = {i: collectives.to_wire(gradients[i]) for i in dense}
    items = [buckets.Item(wire[i].dtype.name, _size_bytes(wire[i])) for i in dense]
    for number, bucket in enumerate(buckets.plan(items, int(settings.bucket_mb * 2**20))):
        members = [dense[i] for i in bucket]
        exchange = DenseReduction(collective, f"bucket {number} ({_few([names[i] for i in members])})", "mean")
        reduced = exchanges.add(exchange, [wire[i] for i in members], [wire[i].shape for i in members])
        results.update({i: tf.cast(r, gradients[i].dtype) for i, r in zip(members, reduced, strict=True)})

    if sparse:
        merged = [merge(gradients[i]) for i in sparse]
        flat = [t for s in merged for t in (s.indices, collectives.to_wire(s.values))]
        exchange_rows = SliceGathering(collective, f"rows of {_few([names[i] for i in sparse])}")
        gathered = exchanges.add(exchange_rows, flat, [t.shape for t in flat])
        for i, indices, values in zip(sparse, gathered[::2], gathered[1::2], strict=True):
            shape = gradients[i].dense_shape
            summed = merge(tf.IndexedSlices(values, indices, shape))
            results[i] = tf.IndexedSlices(tf.cast(summed.values, gradients[i].dtype), summed.indices, shape)
    return [results[i] for i in range(len(gradients))]


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


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"
