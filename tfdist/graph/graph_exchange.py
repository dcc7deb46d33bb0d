"""Graph exchange: tensors of all ranks combined by operations of TensorFlow's, which it builds where they are needed.

The other way, an engine of ``tfdist.engine``, gets arrays on the host, which ``op_builder`` takes out of TensorFlow. A
graph exchange keeps them where they are. The ranks still meet on the host before (``engine.arrival``): who is missing,
whose plan differs, and who wants to stop is found there, whatever combines. Gradients are not seen there: that those of
a first step are the same on all ranks, as their data are, is not told.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tfdist.engine.arrival import Arrival
from tfdist.engine.engines import Bucket
from tfdist.graph.markers import times
from tfdist.graph.op_builder import Part
from tfdist.transport.interfaces import Group

RESULTS = (tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.int32))  # of an arrival


class GraphExchange(Protocol):
    """One way to combine tensors by operations of TensorFlow's; to be inherited from.

    Attributes:
      name: in words, the same on all ranks.
      compiled: XLA can compile what it builds.
    """

    name: str
    compiled: bool = False

    def takes(self, bucket: Bucket, group: Group) -> bool:
        """Whether it combines such tensors, of these ranks; alike on all of them."""

    def build(self, tensor: tf.Tensor, bucket: Bucket, group: Group, key: tf.Tensor) -> tf.Tensor:
        """A tensor's sum over the ranks, built where TensorFlow is building now, or executed.

        What is built runs after all ranks have arrived at it, and in the same order on all. Collective: the group.

        Args:
          tensor: [elements], of the bucket's dtype: its tensors, one after the other.
          bucket: which tensors they are, and how large.
          group: the ranks.
          key: int32 scalar, the same on all ranks and in each step, and no other exchange's in this group.

        Returns:
          [elements], of the same dtype.
        """

    def running(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Around what runs operations that it has built: it is not to wait for a rank that is lost.

        Args:
          what: in words.
        """
        return contextlib.nullcontext()

    def failure(self, error: tf.errors.OpError) -> Exception | None:
        """What is to be raised in place of an error of what it has built; None: the error is of something else."""
        return None


def part_of(
    exchange: GraphExchange, bucket: Bucket, lines: Sequence[str], tensors: Sequence[tf.Tensor], group: Group
) -> Part:
    """What combines a bucket so, as a part of a collective.

    Args:
      exchange: which takes it.
      bucket: of these tensors; a sum or a mean.
      lines: that describe them.
      tensors: this rank's.
      group: the ranks.
    """
    build: Callable[..., list[tf.Tensor]] = functools.partial(_built, exchange, bucket, tensors, group)
    counts = (1 / group.size if bucket.op == "mean" else 1.0) if exchange.compiled else None
    return Part(Arrival(bucket, lines, exchange.name), (), RESULTS, tuple(tensors), build, counts)


def _built(
    exchange: GraphExchange,
    bucket: Bucket,
    tensors: Sequence[tf.Tensor],
    group: Group,
    counts: tf.Tensor,
    key: tf.Tensor,
) -> list[tf.Tensor]:
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    own = _weighted(flat[0] if len(flat) == 1 else tf.concat(flat, 0), counts)
    with exchange.running(bucket.what) if tf.executing_eagerly() else contextlib.nullcontext():
        sums = exchange.build(own, bucket, group, key)
    parts = [sums] if len(flat) == 1 else tf.split(sums, bucket.sizes or [tf.size(one) for one in flat], num=len(flat))
    return [_shaped(part, tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _weighted(tensor: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Times what this rank counts; nothing, if that is nothing, whatever its values."""
    return tf.where(counts > 0, times(tensor, counts), tf.zeros_like(tensor))


def _shaped(flat: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    result = tf.reshape(flat, like.shape if like.shape.is_fully_defined() else tf.shape(like))
    result.set_shape(like.shape)
    return result
