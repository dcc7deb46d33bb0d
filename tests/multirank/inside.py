"""All that the cases know of tfdist's inside: what no public call tells or changes, in one place.

Whoever moves something inside tfdist finds here what tests hold on to. The public ways beside them (``everywhere``)
are here so that the cases have one way to each thing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from unittest import mock

import numpy as np

import tfdist
from tfdist.core.settings import Settings
from tfdist.core.topology import Topology
from tfdist.engine._mapped_memory_engine import MappedMemoryEngine
from tfdist.engine._process_memory_engine import ProcessMemoryEngine
from tfdist.engine._shared_memory_engine import SharedMemoryEngine
from tfdist.engine._small_buckets import AtOnceEngine
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.autotune import BASE
from tfdist.engine.collective import Collective
from tfdist.engine.engines import Bucket, Choice, Engine
from tfdist.graph.job import Job, Reducer
from tfdist.mpi._reduction import InterNodeReductions
from tfdist.start import process
from tfdist.transport.interfaces import Chunking
from tfdist.transport.stall_detection import StallDetector
from tfdist.transport.state_line import RankState

Value = TypeVar("Value")


def everywhere(value: Value) -> list[Value]:
    """What each rank has; in the order of ranks, on all of them. Collective: all ranks."""
    own = np.frombuffer(pickle.dumps(value), np.uint8)
    ends = np.cumsum(tfdist.all_gather(np.array([own.size])))
    return [pickle.loads(part.tobytes()) for part in np.split(tfdist.all_gather(own), ends[:-1])]


def report(value: Value, place: str) -> list[Value]:
    """As ``everywhere``, on the way that tfdist's own agreements take: not by the collectives that are tested."""
    return list(process().job.world.control.all_gather_object(value, place))


def install() -> None:
    """Hook into TensorFlow again, after ``tfdist.uninstall``."""
    if tfdist.size() > 1:
        process().install()
    else:
        process().install_as_needed()


def job() -> Job:
    """This process's part in the job."""
    return process().job


def staged(piece_bytes: int = 1 << 16) -> Choice:
    """Everything through shared memory, in pieces of this size."""
    return by(SharedMemoryEngine(piece_bytes))


def direct(workers: int = 1) -> Choice:
    """Everything in the other ranks' memory, by so many threads of a rank."""
    return by(ProcessMemoryEngine(workers))


def mapped(workers: int = 1) -> Choice:
    """Everything in memory that the ranks map, by so many threads of a rank."""
    return by(MappedMemoryEngine(workers))


def at_once() -> Choice:
    """Small buckets by each rank for itself, the rest through MPI."""
    return dataclasses.replace(through_mpi(), small=AtOnceEngine(1 << 16, nodes() > 1))


def through_mpi() -> Choice:
    """Everything through MPI."""
    return Choice(BASE, math.inf, BASE)


def by(engine: Engine, from_bytes: float = 0) -> Choice:
    """Buckets of this size and more by an engine."""
    return Choice(engine, from_bytes, BASE)


def all_reduce(what: str, op: Any, dtype: Any, sizes: Any) -> AllReduce:
    """The exchange of a bucket, which the chosen engine may take."""
    return AllReduce(Bucket(what, op, np.dtype(dtype), None if sizes is None else tuple(sizes)), tuned=True)


def opened(*exchanges: Any) -> Collective:
    """A collective outside any graph."""
    collective = Collective("a test", exchanges, job().world, job().recorder)
    collective.open(job().engines.choice or through_mpi())
    return collective


def reads_memory_of_other_ranks() -> bool:
    """Whether this system lets ranks read each other's memory."""
    return not process().job.world.process_memory_obstacle()


def nodes() -> int:
    """Over how many machines, pretended ones too, the ranks are spread."""
    return len(process().job.world.topology.nodes)


def bytes_of_buffers(graph: Any) -> list[int]:
    """What each exchange of the first collective of a graph keeps."""
    return [exchange.memory_bytes for exchange in state_of(graph).collectives[0].exchanges]


def state_of(graph: Any) -> Any:
    """What tfdist knows about a graph."""
    from tfdist.graph.graph_state import make_state

    return make_state(graph)


@contextlib.contextmanager
def nothing_told_of_data() -> Iterator[None]:
    """As if this process had compared no data with the others yet: what is wrong with them is told once."""
    with mock.patch.dict(vars(job().data_comparison), _told=set(), _told_of_gradients=False, _told_of_shared=False):
        yield


@contextlib.contextmanager
def blocks_of(size_bytes: int) -> Iterator[None]:
    """Memory of other ranks is read in blocks of this size meanwhile."""
    from tfdist.engine import _node_sum as engine

    kept, engine.BLOCK_BYTES = engine.BLOCK_BYTES, size_bytes
    try:
        yield
    finally:
        engine.BLOCK_BYTES = kept


@contextlib.contextmanager
def reductions(topology: Topology, chunking: Chunking) -> Iterator[InterNodeReductions]:
    """Between nodes as they are said to be. Collective: all ranks."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    own = topology.shards_of(comm.rank)
    detector = StallDetector(_Unknown(), process().job.switches.settings)
    found = InterNodeReductions(comm, detector, own, topology.shards[: own[0].number], range(comm.size))
    found.chunking = chunking
    yield found
    comm.Free()


class _Unknown:
    """See ``state_line.States``."""

    rank = tfdist.rank()
    size = tfdist.size()

    def tell(self, kind: str, what: str) -> None:
        pass

    def tell_waits(self, waits: Any) -> None:
        pass

    def tell_saves(self, saves: bytes) -> None:
        pass

    def tell_position(self, position: int) -> None:
        pass

    def enter(self, line: int, number: int, position: int) -> None:
        pass

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        return {}


@contextlib.contextmanager
def channels_with(piece_bytes: int = 1 << 30, gathered_ranks: int = 64) -> Iterator[None]:
    """MPI gets messages of at most this size meanwhile, and more ranks than this compare before they gather."""
    from tfdist.mpi import _channel, _messages

    kept = _messages.PIECE_BYTES, _channel._GATHERED_RANKS
    _messages.PIECE_BYTES, _channel._GATHERED_RANKS = piece_bytes, gathered_ranks
    try:
        yield
    finally:
        _messages.PIECE_BYTES, _channel._GATHERED_RANKS = kept


def pages_bytes(array: np.ndarray) -> int:
    """How much of an array's memory is there: pages of this process that lie within it, and those at its ends."""
    page = os.sysconf("SC_PAGE_SIZE")
    first = array.ctypes.data // page
    last = (array.ctypes.data + array.nbytes - 1) // page
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * (last - first + 1)), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63))) * page


@contextlib.contextmanager
def no_room_in_shared_memory() -> Iterator[None]:
    """What is asked says that /dev/shm is full."""

    from tfdist.mpi import _windows

    class Full:
        f_bavail, f_frsize = 0, 4096

    kept, _windows.os.statvfs = _windows.os.statvfs, lambda path: Full  # type: ignore
    try:
        yield
    finally:
        _windows.os.statvfs = kept  # type: ignore[attr-defined]


@contextlib.contextmanager
def said_in_fit() -> Iterator[list[str]]:
    """What rank 0's log gets meanwhile from ``fit``."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("tfdist").removeHandler(handler)


def job_blocks() -> Any:
    """What this process knows of blocks of local steps."""
    from tfdist.updates.local_sgd import local_sgd_of

    return local_sgd_of(process().steps)


def autocast_computes(so: bool) -> Any:
    """Whether devices are taken to compute products in half precision, in a ``with``."""
    return mock.patch("tfdist.hooks.autocast._computes", return_value=so)


def nobody_has_told_of_products() -> None:
    """What is said once of a job can be said again."""
    process().job.rounding.__init__()  # type: ignore[misc]


def broadcasts() -> bool:
    """Whether graphs that are built now get rank 0's initial values."""
    return process().job.switches.broadcasts


def current_settings() -> Settings:
    """As they are for the graphs built from now on."""
    return process().job.switches.settings


@contextlib.contextmanager
def settings(choice: Choice | None = None, reducer: Reducer | None = None, **values: Any) -> Iterator[None]:
    """Other settings for a while; also those that only the environment has, how arrays travel, and what becomes of
    gradients."""
    kept, engines = process().job.switches, process().job.engines
    previous = kept.settings, kept.sparse_as_dense, dict(kept.sparse_ways), kept.reducer
    chosen = engines.choice
    kept.settings, kept.reducer = dataclasses.replace(kept.settings, **values), reducer
    engines.choice = choice or chosen
    try:
        yield
    finally:
        kept.settings, kept.sparse_as_dense, kept.sparse_ways, kept.reducer = previous
        engines.choice = chosen
        if tfdist.size() == 1:
            process().install_as_needed()  # what was configured meanwhile may have needed the hooks


def channels() -> int:
    """How many channels all ranks have opened together, those that are free included."""
    return len(job().world._communicators.channels.things)  # type: ignore[attr-defined]


def channels_of_groups() -> tuple[int, int]:
    """How many groups there are beside that of all ranks, those that wait to be used again included; and channels."""
    pools = job().world._groups._pools.values()  # type: ignore[attr-defined]
    groups = [group for _, pool in pools for group in pool.things]
    return len(groups), sum(len(group.channels.things) for group in groups)


def forget_trainings() -> None:
    """What was apart on purpose is not told at the end of the job."""
    process().steps.replicas._carriers.clear()
