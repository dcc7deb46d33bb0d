"""TensorFlow's own collectives: the servers through which ranks reach each other, and the all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.eager import context
from tensorflow.python.framework import errors

_JOB = "worker"
_LEADER = f"/job:{_JOB}/replica:0/task:0"
_MORE_THREADS = 4  # some wait for other ranks while others answer them


def connect_eagerly(addresses: Sequence[str], rank: int, nccl: bool, processors: int) -> None:
    """Connect functions and eager execution to the other ranks (tensorflow/python/eager/context.py).

    Args:
      addresses: host:port of each rank; this rank's server listens at its address when TensorFlow starts.
      rank: rank of this process.
      nccl: True: GPUs use NCCL.
      processors: number of processors that this process may use.

    Raises:
      RuntimeError: TensorFlow has started already.
    """
    here = context.context()
    if not here.inter_op_parallelism_threads:
        here.inter_op_parallelism_threads = processors + _MORE_THREADS
    here.configure_collective_ops(
        collective_leader=_LEADER,
        scoped_allocator_enabled_ops=(),
        use_nccl_communication=nccl,
        device_filters=(f"/job:{_JOB}/task:{rank}",),
    )
    cluster = tf.train.ClusterSpec({_JOB: list(addresses)}).as_cluster_def()
    server = tf.train.ServerDef(cluster=cluster, job_name=_JOB, task_index=rank, protocol="grpc")
    server.default_session_config.CopyFrom(here.config)
    here.enable_collective_ops(server)


def begun() -> bool:
    """Return whether TensorFlow's eager execution has started, so that it is too late to connect."""
    return context.context()._context_handle is not None


def server(addresses: Sequence[str], rank: int, nccl: bool, processors: int) -> Any:
    """Start the server that connects sessions to the other ranks (tensorflow/python/training/server_lib.py)."""
    cluster = tf.train.ClusterSpec({_JOB: list(addresses)})
    own = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=processors + _MORE_THREADS)
    config = session_config(own, rank, nccl)
    return tf.distribute.Server(cluster, job_name=_JOB, task_index=rank, config=config)


def session_config(config: Any, rank: int, nccl: bool) -> Any:
    """Return a copy of a session's settings that connects its collectives. Other operations stay in this process."""
    own = tf.compat.v1.ConfigProto()
    own.CopyFrom(config)
    own.experimental.collective_group_leader = _LEADER
    own.experimental.collective_nccl = nccl
    own.device_filters.append(f"/job:{_JOB}/task:{rank}")
    own.isolate_session_state = True  # else a server's sessions share variables of the same name
    return own


def all_reduce(tensor: tf.Tensor, size: int, group_key: int, key: tf.Tensor, nccl: bool) -> tf.Tensor:
    """Return the sum over the ranks of a group (tensorflow/core/ops/collective_ops.cc, ``CollectiveReduceV2``).

    Args:
      tensor: tensor of any shape, which is the same on all ranks.
      size: number of ranks.
      group_key: key of this group of ranks; no other group has it.
      key: int32 scalar, the same on all ranks; no other collective of the group has it.
      nccl: True: NCCL, on GPUs; False: TensorFlow's ring.

    It waits for the other ranks without a limit: its ``timeout_seconds`` would occupy a thread so long, in each step.
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
    """Let waiting and later collectives of functions and eager execution fail (tensorflow/python/eager/context.py).
    Collectives of sessions continue to wait."""
    context.context().abort_collective_ops(errors.ABORTED, reason)


def in_order(tensor: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Return a tensor that XLA computes after another one: XLA keeps only the order in which values depend on each
    other (tensorflow/compiler/tf2xla/ops/xla_ops.cc, ``XlaOptimizationBarrier``)."""
    result: tf.Tensor = gen_xla_ops.xla_optimization_barrier([tensor, after])[0]
    return result
