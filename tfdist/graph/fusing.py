"""Fusing: dense tensors of one dtype in buckets, each of which is one exchange."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.core.reduce_ops import Op
from tfdist.core.wires import FORMATS, PLAIN, Format
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.engines import Bucket
from tfdist.graph import buckets
from tfdist.graph.graph_exchange import part_of
from tfdist.graph.job import Job
from tfdist.graph.op_builder import Part
from tfdist.transport.interfaces import Group


def fused(
    tensors: Sequence[tf.Tensor],
    names: Sequence[str],
    lines: Sequence[str],
    job: Job,
    group: Group | None = None,
    more: Sequence[str] = (),
    given: Sequence[tf.Tensor] | None = None,
    format: Format | None = None,
) -> tuple[list[list[int]], list[Part]]:
    """Return the exchanges that average dense tensors, in buckets.

    Args:
      tensors: tensors in the dtypes in which they are sent.
      names: names of their variables.
      lines: plan lines that describe the tensors.
      job: the ranks and settings.
      group: ranks for which the job's graph exchange may combine the tensors; None: engines combine them.
      more: further lines of the plan.
      given: arguments of the exchanges, if not ``tensors``; for accumulation, the gradients before their cast.
      format: format in which the tensors travel; None: that of gradients.

    Returns:
      The positions of the tensors of each bucket, and the part that exchanges each bucket.
    """
    items = [buckets.Item(t.dtype.name, _size_bytes(t)) for t in tensors]
    members = buckets.plan(items, int(job.switches.settings.bucket_mb * 2**20))
    parts = []
    for number, of_bucket in enumerate(members):
        what = f"bucket {number} ({few([names[i] for i in of_bucket])})"
        own = [tensors[i] for i in of_bucket]
        bucket = bucket_of(what, "mean", own, format or gradient_format(job))
        of_tensors = [*(lines[i] for i in of_bucket), *more]
        # (Sums over several steps are kept on the host.)
        exchange = job.switches.exchange if given is None and group is not None else None
        if exchange is not None and group is not None and exchange.takes(bucket, group):
            parts.append(part_of(exchange, bucket, of_tensors, own, group))
        else:
            host = AllReduce(bucket, of_tensors, shares_memory=True)
            parts.append(Part(host, [(given or tensors)[i] for i in of_bucket], [spec_of(t) for t in own]))
    return members, parts


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


def gradient_to_wire(tensor: tf.Tensor, job: Job) -> tf.Tensor:
    """Return a gradient in the dtype in which it is sent."""
    return to_wire(tensor, gradient_format(job))


def to_wire(tensor: tf.Tensor, format: Format) -> tf.Tensor:
    """Return the tensor in the dtype in which it is sent; half-precision values are added in float32."""
    return tf.cast(tensor, format.dtype) if tensor.dtype == tf.float32 else tensor


def gradient_format(job: Job) -> Format:
    """Return the format of gradients; in a warm-up before blocks that travel in few bits they travel unchanged."""
    found = FORMATS[job.switches.settings.compression]
    return found if found.of_gradients else PLAIN


def spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
    """Return a tensor's static shape and dtype."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _size_bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def few(names: Sequence[str]) -> str:
    """Return names for a message: up to three, else the first and the last."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"
