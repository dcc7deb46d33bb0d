"""Graph exchange: combines tensors of all ranks by TensorFlow operations, built where the result is needed.

The alternative is an engine of ``tfdist.engine``: it gets arrays on the host, which ``op_builder`` takes out of
TensorFlow. A graph exchange leaves the tensors where they are. The ranks still meet on the host first
(``engine.arrival``), which finds missing ranks, different plans and requests to stop. The host does not see gradients.
So tfdist cannot warn that all ranks compute the same gradients from the same data in a first step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tfdist.engine.arrival import Arrival, RowArrival
from tfdist.engine.engines import Bucket
from tfdist.engine.sparse_rows import Table
from tfdist.graph.markers import times
from tfdist.graph.op_builder import Part
from tfdist.transport.interfaces import Group

RESULTS = (tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.int32))  # an arrival's: factor, key


class GraphExchange(Protocol):
    """One way to combine tensors by TensorFlow operations; a base class.

    Attributes:
      name: name for messages, the same on all ranks.
      compiled: True if XLA can compile the operations that it builds.
    """

    name: str
    compiled: bool = False

    def takes(self, bucket: Bucket, group: Group) -> bool:
        """Return whether it combines such tensors of these ranks; the answer is the same on all ranks."""

    def build(self, tensor: tf.Tensor, bucket: Bucket, group: Group, key: tf.Tensor) -> tf.Tensor:
        """Build a tensor's sum over the ranks in the current graph, or execute it eagerly.

        The operations run after all ranks have arrived, and in the same order on all ranks. Collective: the group.

        Args:
          tensor: [elements], of the bucket's dtype: the bucket's tensors, concatenated.
          bucket: description of the tensors, with their sizes.
          group: ranks that take part.
          key: int32 scalar, the same on all ranks and in each step; each exchange of the group has another key.

        Returns:
          The sum, [elements], of the same dtype.
        """

    def running(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Return a context for code that runs its operations. In it, they do not wait for a lost rank.

        Args:
          what: description for messages.
        """
        return contextlib.nullcontext()

    def failure(self, error: tf.errors.OpError) -> Exception | None:
        """Return the exception to raise for an error of its operations; None if the error has another cause."""
        return None


def part_of(
    exchange: GraphExchange,
    bucket: Bucket,
    lines: Sequence[str],
    tensors: Sequence[tf.Tensor],
    group: Group,
    values: Sequence[int],
) -> Part:
    """Return the part of a collective that combines a bucket by a graph exchange.

    Args:
      exchange: graph exchange that takes the bucket.
      bucket: bucket of these tensors; its operation is a sum or a mean.
      lines: plan lines that describe the tensors.
      tensors: this rank's tensors.
      group: ranks that take part.
      values: numbers of the tensors; see ``Part``.
    """
    build: Callable[..., list[tf.Tensor]] = functools.partial(_built, exchange, bucket, tensors, group)
    counts = (1 / group.size if bucket.op == "mean" else 1.0) if exchange.compiled else None
    return Part(Arrival(bucket, lines, exchange.name), (), RESULTS, tuple(tensors), build, counts, values)


def rows_part_of(
    exchange: GraphExchange,
    bucket: Bucket,
    own: Sequence[tuple[Table, tf.IndexedSlices]],
    lines: Sequence[str],
    group: Group,
    values: Sequence[int],
) -> Part:
    """Return the part of a collective that combines slices by a graph exchange: values stay where they are.

    The ranks exchange indices when they arrive. Each rank adds its rows to zeros, one row for each distinct index of
    all ranks, and the exchange sums these tensors. So all ranks have the same bits, whatever order a device adds in.

    Args:
      exchange: graph exchange that takes the bucket.
      bucket: bucket of the values, in the dtype in which they are sent.
      own: variables, and this rank's slices for each; an index may come more than once.
      lines: plan lines that describe the slices.
      group: ranks that take part.
      values: numbers of the slices; see ``Part``.

    Returns:
      A part whose results are (indices, values) of each table.
    """
    tables, slices = zip(*own, strict=True)
    found = [tf.TensorSpec([None], dtype) for table in tables for dtype in (tf.int32, tf.as_dtype(table.index_dtype))]
    build: Callable[..., list[tf.Tensor]] = functools.partial(_built_rows, exchange, bucket, slices, group)
    arrival = RowArrival(bucket, tables, lines, exchange.name)
    outputs = (*RESULTS, tf.TensorSpec([], tf.int32), *found)
    return Part(arrival, [s.indices for s in slices], outputs, [s.values for s in slices], build, values=values)


def _built_rows(
    exchange: GraphExchange,
    bucket: Bucket,
    slices: Sequence[tf.IndexedSlices],
    group: Group,
    counts: tf.Tensor,
    key: tf.Tensor,
    elements: tf.Tensor,
    *found: tf.Tensor,
) -> list[tf.Tensor]:
    own = []
    for one, places, indices in zip(slices, found[::2], found[1::2], strict=True):
        shape = tf.concat([tf.size(indices)[None], tf.shape(one.values)[1:]], 0)
        rows = tf.scatter_nd(places[:, None], one.values[: tf.size(places)], shape)
        rows.set_shape([None, *one.values.shape[1:]])
        own.append(tf.cast(rows, bucket.dtype))
    rest = tf.zeros([elements - tf.add_n([tf.size(rows) for rows in own])], bucket.dtype)
    averages = _built(exchange, bucket, [*own, rest], group, counts, key)[:-1]
    return [tensor for pair in zip(found[1::2], averages, strict=True) for tensor in pair]


def _built(
    exchange: GraphExchange,
    bucket: Bucket,
    tensors: Sequence[tf.Tensor],
    group: Group,
    counts: tf.Tensor,
    key: tf.Tensor,
) -> list[tf.Tensor]:
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    whole = flat[0] if len(flat) == 1 else tf.concat(flat, 0)
    # Zeros if this rank's factor is 0, even for values that are not finite.
    own = tf.where(counts > 0, times(whole, counts), tf.zeros_like(whole))
    with exchange.running(bucket.what) if tf.executing_eagerly() else contextlib.nullcontext():
        sums = exchange.build(own, bucket, group, key)
    parts = [sums] if len(flat) == 1 else tf.split(sums, bucket.sizes or [tf.size(one) for one in flat], num=len(flat))
    return [_shaped(part, tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _shaped(flat: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    result = tf.reshape(flat, like.shape if like.shape.is_fully_defined() else tf.shape(like))
    result.set_shape(like.shape)
    return result
