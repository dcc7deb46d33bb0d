"""TensorFlow's collectives as a graph exchange: gradients stay on TensorFlow's devices, MPI is the control plane.

MPI exchanges the ranks' addresses, compares plans, and reports missing ranks. NCCL sends the tensors where each rank
has a GPU (chosen by ``TFDIST_ENGINE=nccl``). Otherwise TensorFlow's servers send them (``collectives``).
"""

from __future__ import annotations

import contextlib
import socket
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat import collective_ops
from tfdist.core import environment
from tfdist.core.log import announce
from tfdist.core.settings import NCCL, SettingsError
from tfdist.core.system import processors
from tfdist.engine.engines import Bucket
from tfdist.graph import function_state
from tfdist.graph.addresses import Ports, own_address, unreachable
from tfdist.graph.graph_exchange import GraphExchange
from tfdist.graph.job import Job
from tfdist.processes.devices import gpus_of_machine
from tfdist.transport.errors import PeerError
from tfdist.transport.interfaces import Group, World

_DTYPES = {tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64}
_PLACE = "the addresses of TensorFlow's servers"
_TOO_LATE = (
    "TFDIST_ENGINE={} on rank {}: TensorFlow has executed something before the import of tfdist, and cannot connect to "
    "the other ranks any more. Import tfdist first"
)
_NO_GPU = (
    "TFDIST_ENGINE=nccl, but TensorFlow sees no GPU on {}: install tensorflow[and-cuda], and check nvidia-smi and "
    "CUDA_VISIBLE_DEVICES there, or leave TFDIST_ENGINE out"
)
_SHARED = (
    "TFDIST_ENGINE=nccl, but ranks {} and {} share {}, which NCCL refuses: start as many ranks as there are GPUs, or "
    "leave TFDIST_ENGINE out"
)
_NO_ADDRESS = "TFDIST_ENGINE={}: rank {} has no address by which the other ranks can reach it ({}): {}"
_CLOSED = (
    "TFDIST_ENGINE={}: rank {} cannot reach {}. TensorFlow's servers need these ports between the hosts. Open them in "
    "the firewall, or set the interface of a network that all hosts share (TFDIST_ENGINE={}:interface=eth0). Or leave "
    "TFDIST_ENGINE out"
)
_INTERFACE = "check the name of its network interface by `ip address`"
_NAMES = "give its host a name that resolves, or set its network interface (:interface=eth0)"
_REACH_SECONDS = 20.0
# Errors by which TensorFlow reports that another rank is gone, or has failed.
_OF_OTHERS = tf.errors.UnavailableError, tf.errors.InternalError, tf.errors.AbortedError, tf.errors.CancelledError
_SPEAKS_SECONDS = 1.0


class _Own(NamedTuple):
    """Facts about one rank, which it sends to the other ranks."""

    problem: str
    gpu: str = ""
    address: str = ""
    ports: Sequence[int] = ()


class TensorFlowCollectives(GraphExchange):
    """A graph exchange by TensorFlow's collective operations; see ``graph_exchange.GraphExchange``.

    Args:
      job: the ranks and settings. Collective: all ranks.

    Raises:
      SettingsError: on all ranks, if TensorFlow has already executed something on a rank. Also if a rank has no
        address, no port that others reach, or no GPU of its own.
    """

    def __init__(self, job: Job) -> None:
        settings, self._world = job.switches.settings, job.world
        self._lost: PeerError | None = None
        self._nccl = self.compiled = settings.engine == NCCL
        self.name = "NCCL" if self._nccl else "TensorFlow's collectives"
        self._keys: dict[int, tuple[int | str, ...]] = {}
        environment.set_default("TF_GRPC_REUSE_PORT", "1")  # tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc
        own, reserved = self._say(settings.engine, settings.interface)
        ranks: list[_Own] = [_Own(*one) for one in job.world.control.all_gather_object(tuple(own), _PLACE)]
        _raise_first([one.problem for one in ranks])
        if self._nccl:
            _check_gpus([one.gpu for one in ranks])
        eagerly, self._of_sessions = ([f"{one.address}:{one.ports[n]}" for one in ranks] for n in range(2))
        # Rank 0 arranges groups, and the next rank is a neighbour.
        targets = sorted({0, (job.world.rank + 1) % job.world.size} - {job.world.rank})
        closed = unreachable([eagerly[rank] for rank in targets], _REACH_SECONDS)
        problem = closed and _CLOSED.format(settings.engine, job.world.rank, closed, settings.engine)
        problems = job.world.control.all_gather_object(problem, _PLACE)
        reserved.stop_answering()  # now that all ranks have tried
        self._reserved = reserved
        _raise_first(problems)
        open_ports = ", ".join(f"{one.address}:{one.ports[0]} and {one.ports[1]}" for one in ranks)
        announce(f"{self.name}: TensorFlow's servers serve everybody who reaches them, on all networks: {open_ports}")
        collective_ops.connect_eagerly(eagerly, job.world.rank, self._nccl, len(processors()))
        self._server: Any = None

    def _say(self, engine: str, interface: str) -> tuple[_Own, Ports]:
        """Return what this rank tells the others, and the ports that it reserves; no ports if there is a problem."""
        world = self._world
        hosts = world.control.all_gather_object(socket.gethostname(), _PLACE)
        node = world.topology.node_of(world.rank)
        others = [hosts[ranks[0]] for ranks in world.topology.nodes if world.rank not in ranks]
        if collective_ops.begun():
            return _Own(_TOO_LATE.format(engine, world.rank)), Ports(0, 0)
        try:
            address, ports = own_address(others, interface), Ports(2, world.size)
        except OSError as error:
            remedy = _INTERFACE if interface else _NAMES
            return _Own(_NO_ADDRESS.format(engine, world.rank, error, remedy)), Ports(0, 0)
        return _Own("", _gpu(hosts[node[0]], world) if self._nccl else "", address, ports.numbers), ports

    def takes(self, bucket: Bucket, group: Group) -> bool:
        """Return whether all ranks have the same sizes, and TensorFlow can send the tensors."""
        compiled = function_state.compiled_as()  # the ranks compare sizes before its calls
        alike = bucket.sizes is not None or bucket.alike or bool(compiled)
        return alike and tf.as_dtype(bucket.dtype) in _DTYPES and bucket.format.wire is None

    def build(self, tensor: tf.Tensor, bucket: Bucket, group: Group, key: tf.Tensor) -> tf.Tensor:
        return collective_ops.all_reduce(tensor, group.size, self._key(group), key, self._nccl)

    def _key(self, group: Group) -> int:
        """Return a number for these ranks, which each of them computes without a message.

        XLA makes its own communicator of NCCL for the same ranks. A group key has one NCCL id, which is good for one
        communicator (tensorflow/core/common_runtime/collective_param_resolver_local.cc). So XLA has its own group key.
        """
        of_xla = bool(function_state.compiled_as())
        ranks: tuple[int | str, ...] = (*group.ranks, "XLA") if of_xla else tuple(group.ranks)
        key = zlib.crc32(repr(ranks).encode()) >> 1
        if (known := self._keys.setdefault(key, ranks)) != ranks:
            raise SettingsError(
                f"ranks {list(ranks)} and {list(known)} have the same group key, {key}, and cannot both exchange by "
                "TensorFlow's collectives: leave TFDIST_ENGINE out"
            )
        return key

    def of_session(self, config: Any) -> tuple[str, Any]:
        """Return the target and config of a session whose collectives can reach the other ranks."""
        if self._server is None:
            rank, count = self._world.rank, len(processors())
            self._server = collective_ops.server(self._of_sessions, rank, self._nccl, count)
        given = tf.compat.v1.ConfigProto() if config is None else config
        return self._server.target, collective_ops.session_config(given, self._world.rank, self._nccl)

    def failure(self, error: tf.errors.OpError) -> PeerError | None:
        """Return the ``PeerError`` for an error of TensorFlow's collectives; None for other errors."""
        gone = isinstance(error, tf.errors.UnavailableError)
        if not isinstance(error, _OF_OTHERS) or not (gone or "ollective" in str(error)):
            return None
        time.sleep(_SPEAKS_SECONDS)  # in this time the failed rank reports why, and ends the job
        kind, who = type(error).__name__, self._world.waits.lost() or "a rank has failed"
        failure = self._lost or PeerError(f"rank {self._world.rank}: {self.name} cannot go on ({kind}): {who}")
        self._world.control.give_up(failure)
        return failure

    def running(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self._world.waits.together(what, self._abort)

    def _abort(self, error: PeerError) -> None:
        self._lost = error
        collective_ops.abort(str(error))


def _raise_first(problems: Sequence[str]) -> None:
    """Raise SettingsError with the first problem of all ranks' problems; empty ones are none."""
    for problem in filter(None, problems):
        raise SettingsError(problem)


def _check_gpus(gpus: Sequence[str]) -> None:
    """Raise SettingsError unless each rank has a GPU of its own."""
    without = [str(rank) for rank, gpu in enumerate(gpus) if not gpu]
    if without:
        raise SettingsError(_NO_GPU.format(f"rank {', '.join(without)}"))
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) != rank:
            raise SettingsError(_SHARED.format(first, rank, gpu))


def _gpu(machine: str, world: World) -> str:
    """Return a description of the GPU that TensorFlow uses first on this rank; empty if there is none."""
    if not tf.config.list_physical_devices("GPU"):
        return ""
    visible = environment.variables().get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if gpus_of_machine() >= world.local_size:
        return f"GPU {visible} of rank {world.rank}"  # a batch system may show each rank its own GPU as 0
    # (For NCCL, ranks with different NCCL_HOSTID are on different hosts, and share no GPU.)
    return f"GPU {visible} of {environment.variables().get('NCCL_HOSTID', machine)}"
