"""All uses of tfdist's internals by the cases: state that no public call returns or changes.

After a change of tfdist's internals, only this module must follow. It also has some public calls (``everywhere``), so
that the cases have one way to do each thing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from unittest import mock

import numpy as np

import tfdist
from tfdist.core.settings import Settings
from tfdist.core.topology import Topology
from tfdist.engine._mpi_engine import MpiEngine
from tfdist.engine._node_sum import NodeSumEngine
from tfdist.engine._small_buckets import SmallBucketEngine
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.engines import Bucket, Choice
from tfdist.graph.job import Job, Reducer
from tfdist.mpi._reduction import InterNodeReductions
from tfdist.start import process
from tfdist.transport.stall_detection import StallDetector
from tfdist.transport.state_line import RankState

Value = TypeVar("Value")


def everywhere(value: Value) -> list[Value]:
    """Return the values of all ranks in the order of ranks, on every rank. Collective: all ranks."""
    own = np.frombuffer(pickle.dumps(value), np.uint8)
    ends = np.cumsum(tfdist.all_gather(np.array([own.size])))
    return [pickle.loads(part.tobytes()) for part in np.split(tfdist.all_gather(own), ends[:-1])]


def report(value: Value, place: str) -> list[Value]:
    """Do what ``everywhere`` does, but by the channel of tfdist's agreements and not by the tested collectives."""
    return list(process().job.world.control.all_gather_object(value, place))


def install() -> None:
    """Hook into TensorFlow again, after ``tfdist.uninstall``."""
    if tfdist.size() > 1:
        process().install()
    else:
        process().install_as_needed()


def job() -> Job:
    """Return this process's ``Job``."""
    return process().job


def mapped(threads: int = 1, smallest_bytes: int = 0) -> Choice:
    """Return the choice that uses memory which the ranks map, for buckets from a size on."""
    return Choice(MpiEngine(), large=NodeSumEngine(threads, smallest_bytes))


def at_once() -> Choice:
    """Return the choice in which each rank reduces small buckets itself; the rest goes through MPI."""
    return Choice(MpiEngine(), small=SmallBucketEngine(1 << 16, nodes() > 1))


def through_mpi() -> Choice:
    """Return the choice that sends everything through MPI."""
    return Choice(MpiEngine())


def all_reduce(what: str, op: Any, dtype: Any, sizes: Any) -> AllReduce:
    """Return the all-reduce of a bucket, which the chosen engine may take."""
    return AllReduce(Bucket(what, op, np.dtype(dtype), None if sizes is None else tuple(sizes)), shares_memory=True)


def opened(*exchanges: Any) -> Collective:
    """Open a collective outside any graph."""
    collective = Collective("a test", exchanges, job().world, job().recorder)
    collective.open(job().engines.current)
    return collective


def nodes() -> int:
    """Return the number of nodes of the ranks; a machine may be divided into several nodes."""
    return len(process().job.world.topology.nodes)


def bytes_of_buffers(graph: Any) -> list[int]:
    """Return the bytes of buffers of each exchange in a graph's first collective."""
    return [exchange.memory_bytes for exchange in state_of(graph).collectives[0].exchanges]


def state_of(graph: Any) -> Any:
    """Return tfdist's state of a graph."""
    from tfdist.graph.graph_state import make_state

    return make_state(graph)


@contextlib.contextmanager
def nothing_told_of_data() -> Iterator[None]:
    """Reset the comparison of data, which reports each fault only once per process."""
    with mock.patch.dict(vars(job().data_comparison), _told=set()):
        yield


@contextlib.contextmanager
def blocks_of(size_bytes: int) -> Iterator[None]:
    """Set the size of the blocks in which other ranks' memory is read, while the context is open."""
    from tfdist.engine import _node_sum as engine

    kept, engine.BLOCK_BYTES = engine.BLOCK_BYTES, size_bytes
    try:
        yield
    finally:
        engine.BLOCK_BYTES = kept


@contextlib.contextmanager
def reductions(topology: Topology, message_bytes: int) -> Iterator[InterNodeReductions]:
    """Make the reductions between the nodes of a topology, with messages of this size. Collective: all ranks."""
    from mpi4py import MPI

    from tfdist.mpi import _reduction

    comm = MPI.COMM_WORLD.Dup()
    own = topology.shards_of(comm.rank)
    detector = StallDetector(_Unknown(), process().job.switches.settings)
    with mock.patch.object(_reduction, "MESSAGE_BYTES", message_bytes):
        yield InterNodeReductions(comm, detector, own, topology.shards[: own[0].number], range(comm.size))
    comm.Free()


class _Unknown:
    """``state_line.States`` that records nothing."""

    rank = tfdist.rank()
    size = tfdist.size()

    def tell(self, kind: str, what: str) -> None:
        pass

    def tell_held(self, held: Any) -> None:
        pass

    def tell_saves(self, saves: bytes) -> None:
        pass

    def tell_position(self, position: int) -> None:
        pass

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        return {}


@contextlib.contextmanager
def channels_with(piece_bytes: int = 1 << 30, gathered_ranks: int = 64) -> Iterator[None]:
    """Limit MPI's messages to this size, and let more ranks than this compare first, while the context is open."""
    from tfdist.mpi import _channel, _messages

    kept = _messages.PIECE_BYTES, _channel._GATHERED_RANKS
    _messages.PIECE_BYTES, _channel._GATHERED_RANKS = piece_bytes, gathered_ranks
    try:
        yield
    finally:
        _messages.PIECE_BYTES, _channel._GATHERED_RANKS = kept


def pages_bytes(array: np.ndarray) -> int:
    """Return the resident bytes of an array: of its pages in this process, including the pages at both ends."""
    page = os.sysconf("SC_PAGE_SIZE")
    first = array.ctypes.data // page
    last = (array.ctypes.data + array.nbytes - 1) // page
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * (last - first + 1)), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63))) * page


@contextlib.contextmanager
def no_room_in_shared_memory() -> Iterator[None]:
    """Let ``statvfs`` report that /dev/shm is full while the context is open, for channels that are new there."""

    from tfdist.mpi import _shared_memory
    from tfdist.mpi._pool import Pool

    class Full:
        f_bavail, f_frsize = 0, 4096

    communicators = job().world._communicators  # type: ignore[attr-defined]
    channels = Pool(communicators.control, communicators._new_channel, "channel")
    with (
        mock.patch.object(communicators, "channels", channels),
        mock.patch.object(_shared_memory.os, "statvfs", lambda path: Full),
    ):
        yield


@contextlib.contextmanager
def captured_log() -> Iterator[list[str]]:
    """Collect the lines that this rank logs, while the context is open."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("tfdist").removeHandler(handler)


def job_blocks() -> Any:
    """Return this process's state of local SGD."""
    from tfdist.updates.local_sgd import local_sgd_of

    return local_sgd_of(process().steps)


def autocast_computes(so: bool) -> Any:
    """Set, in a ``with``, whether devices count as computing products in half precision."""
    return mock.patch("tfdist.hooks.autocast._computes", return_value=so)


def nobody_has_told_of_products() -> None:
    """Let messages about products that a job logs once be logged again."""
    process().job.rounding.__init__()  # type: ignore[misc]


def broadcasts() -> bool:
    """Return whether graphs that are built now get rank 0's initial values."""
    return process().job.switches.broadcasts


def current_settings() -> Settings:
    """Return the settings for graphs that are built from now on."""
    return process().job.switches.settings


@contextlib.contextmanager
def settings(choice: Choice | None = None, reducer: Reducer | None = None, **values: Any) -> Iterator[None]:
    """Change settings while the context is open: also settings that only the environment has, the choice of engines,
    and the reducer."""
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
            process().install_as_needed()  # settings changed in the context may have needed the hooks


def channels() -> int:
    """Return the number of channels that all ranks have opened together, free channels included."""
    return len(job().world._communicators.channels.things)  # type: ignore[attr-defined]


def channels_of_groups() -> tuple[int, int]:
    """Return the number of groups without the group of all ranks, free groups included, and of their channels."""
    pools = job().world._groups._pools.values()  # type: ignore[attr-defined]
    groups = [group for _, pool in pools for group in pool.things]
    return len(groups), sum(len(group.channels.things) for group in groups)


def nobody_has_told_of_what_was_set() -> None:
    """Let messages about variables that some ranks have set, which a job logs once, be logged again."""
    vars(job()).pop("say_set_apart", None)
    process().steps.replicas._told.clear()


def forget_trainings() -> None:
    """Forget variables that differ on purpose, so that the end of the job does not report them."""
    process().steps.replicas._carriers.clear()
