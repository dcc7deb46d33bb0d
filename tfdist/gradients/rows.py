"""Slices (tf.IndexedSlices) as exchanges: rows through the host, rows by a graph exchange, or spread rows for XLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from tfdist.engine.engines import Bucket
from tfdist.engine.sparse_rows import Rows, SparseMode, Table
from tfdist.graph.fusing import gradient_format, to_wire
from tfdist.graph.graph_exchange import rows_part_of
from tfdist.graph.job import Job
from tfdist.graph.op_builder import Part, few, signature
from tfdist.transport.interfaces import Group


def row_parts(
    slices: Mapping[int, tf.IndexedSlices],
    names: Sequence[str],
    job: Job,
    group: Group,
    more: Sequence[str] = (),
    accumulates: bool = False,
) -> list[Part]:
    """Return the exchanges that average slices, with any number of rows on each rank.

    Args:
      slices: this rank's slices, by their numbers.
      names: names of their variables, by the same numbers.
      job: the ranks and settings.
      group: ranks that take part.
      more: further lines of the plan.
      accumulates: True: several steps are added up first, on the host.

    Returns:
      Parts whose results are indices and values of each of the slices.
    """
    if not slices:
        return []
    tables = {i: _table(names[i], s, job) for i, s in slices.items()}
    # The number of rows may differ between ranks, the shape of a row must not.
    lines = {i: signature("slices for", names[i], _unknown_rows(s.values)) for i, s in slices.items()}
    exchange = None if accumulates else job.switches.exchange
    if exchange is not None:
        members: dict[np.dtype, list[int]] = {}
        for i, table in tables.items():
            members.setdefault(table.dtype, []).append(i)
        buckets = [
            Bucket(f"rows of {few([names[i] for i in own])}", "mean", dtype, None, alike=True)
            for dtype, own in members.items()
        ]
        if all(exchange.takes(bucket, group) for bucket in buckets):
            return [
                rows_part_of(
                    exchange, bucket, [(tables[i], slices[i]) for i in own], [lines[i] for i in own], group, own
                )
                for bucket, own in zip(buckets, members.values(), strict=True)
            ]
    merged = [s if tables[i].way == "unmerged" else merge(s) for i, s in slices.items()]
    format = gradient_format(job)
    sent = [t for s in merged for t in (s.indices, to_wire(s.values, format))]
    given = [t for s in merged for t in (s.indices, s.values)] if accumulates else sent
    host = Rows(f"rows of {few([names[i] for i in slices])}", list(tables.values()), [*lines.values(), *more])
    return [Part(host, given, [_unknown_rows(t) for t in sent], values=list(slices))]


def spread(slices: tf.IndexedSlices, group: Group) -> tuple[tf.Tensor, tf.Tensor]:
    """Return slices as tensors whose sum over the ranks is the concatenation of all ranks' slices.

    Args:
      slices: values [rows, …], with the same number of rows on all ranks.
      group: ranks whose slices are concatenated.

    Returns:
      Indices [rows * ranks], int64, and values [rows * ranks, …]; zeros in the rows of other ranks.
    """

    def whole(tensor: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(tensor)
        before, behind = group.rank * shape[0], (group.size - 1 - group.rank) * shape[0]
        padding = [[before, behind], *([[0, 0]] * (tensor.shape.rank - 1))]
        found = tf.pad(tensor, padding)
        rows = tensor.shape[0]
        found.set_shape([None if rows is None else rows * group.size, *tensor.shape[1:]])
        return found

    return whole(tf.cast(slices.indices, tf.int64)), whole(slices.values)


def of_any_rows(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return tensors with an unknown number of rows, as they replace this rank's tensors, which have fewer rows."""
    return tuple(tf.compat.v1.placeholder_with_default(t, [None, *t.shape[1:]]) for t in tensors)


def _table(name: str, slices: tf.IndexedSlices, job: Job) -> Table:
    dtype = tf.as_dtype(gradient_format(job).dtype) if slices.dtype == tf.float32 else slices.dtype
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return Table(
        name,
        None if shape is None else int(shape[0]),
        way_of(name, job),
        np.dtype(slices.indices.dtype.as_numpy_dtype),
        np.dtype(dtype.as_numpy_dtype),
        tuple(slices.values.shape[1:].as_list()),
    )


def way_of(name: str, job: Job) -> SparseMode:
    """Return the sparse mode that is set for a variable."""
    switches = job.switches
    return switches.sparse_ways.get(name.removesuffix(":0"), cast("SparseMode", switches.settings.sparse))


def _unknown_rows(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def merge(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Merge slices: each row appears once, and the values of duplicates are added.

    Args:
      slices: values [rows, …], indices [rows].

    Returns:
      Values [distinct rows, …], with ascending indices.
    """
    found, where = tf.unique(slices.indices)
    count = tf.size(found)
    order = tf.math.top_k(-found, count).indices  # ascending
    places = tf.gather(tf.math.invert_permutation(order), where)
    values = tf.math.unsorted_segment_sum(slices.values, places, count)
    values.set_shape([None, *slices.values.shape[1:]])
    return tf.IndexedSlices(values, tf.gather(found, order), slices.dense_shape)
