"""Fusing: dense tensors of one dtype in buckets, each of which is one exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfdist.core.reduce_ops import Op
from tfdist.core.wires import FORMATS, PLAIN, Format
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.engines import Bucket
from tfdist.graph.graph_exchange import part_of
from tfdist.graph.job import Job
from tfdist.graph.op_builder import Part, few, signature
from tfdist.transport.interfaces import Group

_FIRST_IS_SMALLER = 8


def fused(
    tensors: Mapping[int, tf.Tensor | tf.TensorSpec],
    names: Sequence[str],
    job: Job,
    group: Group | None = None,
    more: Sequence[str] = (),
    kind: str = "gradient",
    op: Op = "mean",
    accumulates: bool = False,
    format: Format | None = None,
) -> list[Part]:
    """Return the exchanges that combine dense tensors, in buckets.

    Args:
      tensors: this rank's tensors, by their numbers.
      names: names of their variables, by the same numbers.
      job: the ranks and settings.
      group: ranks for which the job's graph exchange may combine the tensors; None: engines combine them.
      more: further lines of the plan.
      kind: word for the tensors in the plan.
      op: operation that combines the tensors.
      accumulates: True: several steps are added up first, on the host, in the tensors' own dtypes.
      format: format in which the tensors travel; None: that of gradients.
    """
    format = format or gradient_format(job)
    sent = {number: to_wire(tensor, format) for number, tensor in tensors.items()}
    numbers, sizes = list(sent), [(t.dtype.name, (t.shape.num_elements() or 0) * t.dtype.size) for t in sent.values()]
    parts = []
    for place, members in enumerate(plan(sizes, int(job.switches.settings.bucket_mb * 2**20))):
        of_bucket = [numbers[i] for i in members]
        own = [sent[i] for i in of_bucket]
        bucket = bucket_of(f"bucket {place} ({few([names[i] for i in of_bucket])})", op, own, format)
        lines = [*(signature(kind, names[i], tensors[i]) for i in of_bucket), *more]
        exchange = None if accumulates or group is None else job.switches.exchange
        if exchange is not None and group is not None and exchange.takes(bucket, group):
            parts.append(part_of(exchange, bucket, lines, own, group, of_bucket))
        else:
            given = [tensors[i] for i in of_bucket] if accumulates else own
            outputs = [tf.TensorSpec(t.shape, t.dtype) for t in own]
            parts.append(Part(AllReduce(bucket, lines, shares_memory=True), given, outputs, values=of_bucket))
    return parts


def plan(items: Sequence[tuple[str, int]], bucket_bytes: int) -> list[list[int]]:
    """Cut tensors into buckets of one dtype each. The first bucket is small, so that the exchange begins early.

    One message per tensor would pay MPI's latency for each variable. One message for all tensors could begin only after
    the last gradient. All ranks have equal graphs, so they cut the same buckets.

    Args:
      items: dtypes on the wire and sizes in bytes, in the order in which the backward pass makes the tensors.
      bucket_bytes: largest size of a bucket; a larger tensor has a bucket of its own.

    Returns:
      Places of the items of each bucket, ascending; the buckets are in the order of their first items.
    """
    buckets: list[list[int]] = []
    last: dict[str, tuple[int, float]] = {}  # number and size of each dtype's last bucket
    for place, (dtype, size_bytes) in enumerate(items):
        number, filled = last.get(dtype, (0, math.inf))
        if filled + size_bytes > (bucket_bytes if number else bucket_bytes // _FIRST_IS_SMALLER):
            number, filled = len(buckets), 0
            buckets.append([])
        buckets[number].append(place)
        last[dtype] = number, filled + size_bytes
    return buckets


def bucket_of(what: str, op: Op, tensors: Sequence[tf.Tensor], format: Format = PLAIN) -> Bucket:
    """Return a bucket: tensors of one dtype that are combined together.

    Args:
      what: description for messages.
      op: reduction operation, for example ``"mean"``.
      tensors: tensors of one dtype.
      format: wire format between hosts; used if the tensors are float32 and their shapes are known.
    """
    sizes = [t.shape.num_elements() for t in tensors]
    known = tuple(s for s in sizes if s is not None)
    dtype = np.dtype(tensors[0].dtype.as_numpy_dtype)
    if dtype != np.float32 or len(known) < len(sizes):
        format = PLAIN
    return Bucket(what, op, dtype, known if len(known) == len(sizes) else None, format)


def to_wire(tensor: tf.Tensor | tf.TensorSpec, format: Format) -> tf.Tensor | tf.TensorSpec:
    """Return the tensor in the dtype in which it is sent; half-precision values are added in float32."""
    if tensor.dtype != tf.float32:
        return tensor
    is_spec = isinstance(tensor, tf.TensorSpec)
    return tf.TensorSpec(tensor.shape, format.dtype) if is_spec else tf.cast(tensor, format.dtype)


def gradient_format(job: Job) -> Format:
    """Return the format of gradients; in a warm-up before blocks that travel in few bits they travel unchanged."""
    found = FORMATS[job.switches.settings.compression]
    return found if found.of_gradients else PLAIN
