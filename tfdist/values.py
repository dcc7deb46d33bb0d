"""Collectives for the user's own tensors and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tfdist import collectives
from tfdist.collectives import Broadcasting, Collective, DenseReduction, Exchanges, signature
from tfdist.graphs import make_state, unconstrained
from tfdist.job import Job

_OPS = ("mean", "sum")


def all_reduce(value: Any, op: str, job: Job, call: int) -> Any:
    """See ``tfdist.all_reduce``."""
    value = _tensor_of(value)
    if op not in _OPS:
        raise ValueError(f"op={op!r}; it is one of {', '.join(map(repr, _OPS))}")
    dtype = value.dtype.as_numpy_dtype if isinstance(value, tf.Tensor) else np.asarray(value).dtype
    if op == "mean" and np.issubdtype(dtype, np.integer):
        raise ValueError(f"the mean of {np.dtype(dtype).name} is not an integer; use op='sum', or cast to a float")
    if job.world.size == 1:
        return value
    if _in_graph(value):
        return _in_graph_collective(
            "all_reduce",
            collectives.to_wire(value),
            job,
            lambda c: DenseReduction(c, "tensor", op),
            value.dtype,
        )
    reduced = _all_reduce_now(np.asarray(value), op, job, call)
    return tf.constant(reduced, value.dtype) if isinstance(value, tf.Tensor) else reduced


def _all_reduce_now(value: np.ndarray, op: str, job: Job, call: int) -> np.ndarray:
    narrow = value.dtype.itemsize == 2 and not np.issubdtype(value.dtype, np.integer)  # float16, bfloat16
    buffer = np.array(value, np.float32 if narrow else value.dtype, order="C", copy=True)
    control = job.world.control
    control.arrive(f"tfdist.all_reduce of {buffer.dtype.name}, call {call}", size_bytes=buffer.nbytes)
    control.all_reduce(buffer)
    if op == "mean":
        buffer /= job.world.size
    return buffer.astype(value.dtype)


def broadcast(value: Any, job: Job, call: int) -> Any:
    """See ``tfdist.broadcast``."""
    value = _tensor_of(value)
    if _in_graph(value):
        return _in_graph_collective("broadcast", value, job, Broadcasting, value.dtype)
    place = f"tfdist.broadcast, call {call}"
    if isinstance(value, tf.Tensor):
        return tf.constant(job.world.control.broadcast_object(value.numpy(), place), value.dtype)
    return job.world.control.broadcast_object(value, place)


def _tensor_of(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value


def _in_graph(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not hasattr(value, "numpy")


def _in_graph_collective(kind: str, tensor: tf.Tensor, job: Job, exchange: Any, dtype: tf.DType) -> tf.Tensor:
    graph = ops.get_default_graph()
    name = f"{kind} {len(make_state(graph).collectives)} of {tensor.op.name}"
    collective = Collective(name, [signature(kind, tensor.op.name, tensor)], job.world)
    with unconstrained(graph), tf.name_scope(f"tfdist/{kind}"):
        (result,) = Exchanges(collective, job.broadcasts).add(exchange(collective), [tensor], [tensor.shape])
        return tf.cast(result, dtype)
