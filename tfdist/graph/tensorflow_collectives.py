"""TensorFlow's collectives as an exchange: gradients stay where TensorFlow has them, and MPI is the control plane.

MPI tells the ranks each other's addresses, compares plans, and says who is missing; TensorFlow's servers carry the
tensors. Chosen by ``TFDIST_ENGINE=collectives``.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import collective_ops
from tfdist.core.settings import SettingsError
from tfdist.engine.engines import Bucket
from tfdist.graph.job import Job
from tfdist.transport.interfaces import Group

_DTYPES = {np.dtype(dtype) for dtype in (np.float16, np.float32, np.float64)}
_TOO_LATE = (
    "TFDIST_ENGINE=collectives on rank {}: TensorFlow has executed something before the import of tfdist, and cannot "
    "be told of the other ranks any more: import tfdist first"
)
_PLACE = "the addresses of TensorFlow's servers"


class TensorFlowCollectives:
    """See ``graph_exchange.GraphExchange``.

    Args:
      job: the ranks and settings. Collective: all ranks.

    Raises:
      SettingsError: on all ranks: TensorFlow has begun already on one.
    """

    name = "TensorFlow's collectives"

    def __init__(self, job: Job) -> None:
        self._world = job.world
        self._seconds = job.switches.settings.stall_abort_seconds
        several = len(job.world.topology.nodes) > 1
        with socket.socket() as first, socket.socket() as second:
            ports = [_port(one) for one in (first, second)]
            host = socket.gethostbyname(socket.gethostname()) if several else "127.0.0.1"
            found: Sequence[Any] = job.world.control.all_gather_object((host, ports, collective_ops.begun()), _PLACE)
        late = [rank for rank, (*_, begun) in enumerate(found) if begun]
        if late:
            raise SettingsError(_TOO_LATE.format(late[0]))
        eagerly, self._of_sessions = ([f"{host}:{ports[n]}" for host, ports, _ in found] for n in range(2))
        collective_ops.connect_eagerly(eagerly, job.world.rank, nccl=False)
        self._server: Any = None

    def takes(self, bucket: Bucket, group: Group) -> bool:
        """Dense tensors of known sizes, of all ranks."""
        return group is self._world and bucket.sizes is not None and bucket.dtype in _DTYPES

    def build(self, tensors: Sequence[tf.Tensor], bucket: Bucket, group: Group, key: tf.Tensor) -> list[tf.Tensor]:
        """One concatenation, one all-reduce, one split."""
        flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
        own = flat[0] if len(flat) == 1 else tf.concat(flat, 0)
        sums = collective_ops.all_reduce(own, group.size, key, nccl=False, seconds=self._seconds)
        parts = tf.split(sums, list(bucket.sizes or ()))
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def of_session(self, config: Any) -> tuple[str, Any]:
        """The target and the settings of a session whose collectives know the other ranks."""
        if self._server is None:
            self._server = collective_ops.server(self._of_sessions, self._world.rank, nccl=False)
        given = tf.compat.v1.ConfigProto() if config is None else config
        return self._server.target, collective_ops.session_config(given, self._world.rank, nccl=False)


def _port(free: socket.socket) -> int:
    """One that is free, until the socket is closed."""
    free.bind(("", 0))
    port: int = free.getsockname()[1]
    return port
