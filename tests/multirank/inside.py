"""All that the cases know of tfdist's inside: what no public call tells or changes, in one place.

Whoever moves something inside tfdist finds here what tests hold on to. The public ways beside them (``everywhere``)
are here so that the cases have one way to each thing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

import tfdist
from tfdist.job import Job, Tuning
from tfdist.settings import Settings

Value = TypeVar("Value")


def everywhere(value: Value) -> list[Value]:
    """What each rank has; in the order of ranks, on all of them. Collective: all ranks."""
    own = np.frombuffer(pickle.dumps(value), np.uint8)
    ends = np.cumsum(tfdist.all_gather(np.array([own.size])))
    return [pickle.loads(part.tobytes()) for part in np.split(tfdist.all_gather(own), ends[:-1])]


def report(value: Value, place: str) -> list[Value]:
    """As ``everywhere``, on the way that tfdist's own agreements take: not by the collectives that are tested."""
    return list(tfdist._world.control.all_gather_object(value, place))


def install() -> None:
    """Hook into TensorFlow again, after ``tfdist.uninstall``."""
    if tfdist.size() > 1:
        tfdist._process.install()


def job() -> Job:
    """What collectives outside any graph are opened for."""
    return tfdist._job


def reads_memory_of_other_ranks() -> bool:
    """Whether this system lets ranks read each other's memory."""
    return tfdist._world.direct


def nodes() -> int:
    """Over how many machines, pretended ones too, the ranks are spread."""
    return len(tfdist._world.topology.nodes)


def bytes_of_buffers(graph: Any) -> list[int]:
    """How long each array is that the first collective of a graph keeps."""
    return [a.nbytes for e in state_of(graph).collectives[0].exchanges for a in e._buffers._owned]  # type: ignore[attr-defined]


def state_of(graph: Any) -> Any:
    """What tfdist knows about a graph."""
    from tfdist.graphs import make_state

    return make_state(graph)


@contextlib.contextmanager
def blocks_of(size_bytes: int) -> Iterator[None]:
    """Memory of other ranks is read in blocks of this size meanwhile."""
    from tfdist import adding

    kept, adding._BLOCK_BYTES = adding._BLOCK_BYTES, size_bytes
    try:
        yield
    finally:
        adding._BLOCK_BYTES = kept


@contextlib.contextmanager
def no_room_in_shared_memory() -> Iterator[None]:
    """What is asked says that /dev/shm is full."""

    from tfdist import mpi

    class Full:
        f_bavail, f_frsize = 0, 4096

    kept, mpi.os.statvfs = mpi.os.statvfs, lambda path: Full  # type: ignore
    try:
        yield
    finally:
        mpi.os.statvfs = kept  # type: ignore[attr-defined]


@contextlib.contextmanager
def said_in_fit() -> Iterator[list[str]]:
    """What rank 0's log gets meanwhile from ``fit``."""
    from tfdist import batches

    lines: list[str] = []
    before, batches.log = batches.log, lines.append  # type: ignore[assignment]
    try:
        yield lines
    finally:
        batches.log = before


def broadcasts() -> bool:
    """Whether graphs that are built now get rank 0's initial values."""
    return tfdist._job.broadcasts


def current_settings() -> Settings:
    """As they are for the graphs built from now on."""
    return tfdist._job.settings


@contextlib.contextmanager
def settings(way: Tuning | None = None, **values: Any) -> Iterator[None]:
    """Other settings for a while; also those that only the environment has, and how arrays travel."""
    kept = tfdist._job
    previous = kept.settings, kept.tuning, kept.sparse_as_dense, dict(kept.sparse_ways)
    kept.settings = dataclasses.replace(kept.settings, **values)
    kept.tuning = way or previous[1]
    try:
        yield
    finally:
        kept.settings, kept.tuning, kept.sparse_as_dense, kept.sparse_ways = previous
