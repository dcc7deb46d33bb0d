"""TensorFlow's own collectives: servers that ranks reach each other by, and the all-reduce."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.protobuf import cluster_pb2, tensorflow_server_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import errors

_JOB = "worker"
_LEADER = f"/job:{_JOB}/replica:0/task:0"


def connect_eagerly(addresses: Sequence[str], rank: int, nccl: bool) -> None:
    """Have functions and eager execution know the other ranks (tensorflow/python/eager/context.py).

    Args:
      addresses: host:port of each rank; this one's server listens there when TensorFlow begins.
      rank: of this process.
      nccl: GPUs combine by NCCL.

    Raises:
      RuntimeError: TensorFlow has begun already.
    """
    here = context.context()
    if not here.inter_op_parallelism_threads:
        here.inter_op_parallelism_threads = _threads()
    here.configure_collective_ops(
        collective_leader=_LEADER,
        scoped_allocator_enabled_ops=(),
        use_nccl_communication=nccl,
        device_filters=(f"/job:{_JOB}/task:{rank}",),
    )
    cluster = cluster_pb2.ClusterDef()
    job = cluster.job.add(name=_JOB)
    for task, address in enumerate(addresses):
        job.tasks[task] = address
    server = tensorflow_server_pb2.ServerDef(cluster=cluster, job_name=_JOB, task_index=rank, protocol="grpc")
    server.default_session_config.CopyFrom(here.config)
    here.enable_collective_ops(server)


def begun() -> bool:
    """Whether TensorFlow executes eagerly already, so that it is too late to connect."""
    return context.context()._context_handle is not None


def server(addresses: Sequence[str], rank: int, nccl: bool) -> Any:
    """Start the server by which sessions know the other ranks (tensorflow/python/training/server_lib.py)."""
    cluster = tf.train.ClusterSpec({_JOB: list(addresses)})
    config = session_config(tf.compat.v1.ConfigProto(inter_op_parallelism_threads=_threads()), rank, nccl)
    return tf.distribute.Server(cluster, job_name=_JOB, task_index=rank, config=config)


def session_config(config: Any, rank: int, nccl: bool) -> Any:
    """A session's settings, a copy, with which its collectives know the others; its other operations stay here."""
    own = tf.compat.v1.ConfigProto()
    own.CopyFrom(config)
    own.experimental.collective_group_leader = _LEADER
    own.experimental.collective_nccl = nccl
    own.device_filters.append(f"/job:{_JOB}/task:{rank}")
    own.isolate_session_state = True  # else a server's sessions share the variables of one name
    return own


def _threads() -> int:
    """Of a server: some wait for other ranks, which it must answer meanwhile."""
    return len(os.sched_getaffinity(0)) + 4


def all_reduce(tensor: tf.Tensor, size: int, group_key: int, key: tf.Tensor, nccl: bool) -> tf.Tensor:
    """The sum over the ranks of a group (tensorflow/core/ops/collective_ops.cc, ``CollectiveReduceV2``).

    Args:
      tensor: of any shape, the same on all ranks.
      size: how many ranks.
      group_key: of these ranks, and of no others.
      key: int32 scalar, the same on all ranks, and no other collective's of the group.
      nccl: by NCCL, on GPUs; else by TensorFlow's ring.

    It waits for the other ranks for ever: its own ``timeout_seconds`` would cost a thread for as long, in each step.
    """
    return tf.raw_ops.CollectiveReduceV2(
        input=tensor,
        group_size=size,
        group_key=group_key,
        instance_key=key,
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
        communication_hint="nccl" if nccl else "ring",
    )


def abort(reason: str) -> None:
    """Have those of functions and eager execution that wait for another rank fail, and all to come
    (tensorflow/python/eager/context.py); those of sessions wait on."""
    context.context().abort_collective_ops(errors.ABORTED, reason)


def in_order(tensor: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """A tensor that XLA computes no earlier than another one: it keeps no order but that of values
    (tensorflow/compiler/tf2xla/ops/xla_ops.cc, ``XlaOptimizationBarrier``)."""
    result: tf.Tensor = gen_xla_ops.xla_optimization_barrier([tensor, after])[0]
    return result
