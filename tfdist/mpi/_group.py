"""MPI process groups: some of the ranks, their communicators, and the release of groups that are closed or dropped."""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.core.topology import Topology
from tfdist.mpi._channel import MpiChannel
from tfdist.mpi._node import MpiNode
from tfdist.mpi._pool import Pool
from tfdist.mpi._reduction import InterNodeReductions
from tfdist.mpi._shared_memory import SharedMemory
from tfdist.transport.errors import DisagreementError
from tfdist.transport.interfaces import SMALL_BYTES, Channel
from tfdist.transport.stall_detection import StallDetector

_LONGEST_WORDS = 40


class Communicators:
    """The communicators and channels of some of the job's ranks.

    Args:
      comm: communicator of these ranks; only its duplicates carry messages.
      detector: stall detector of this rank.
      ranks: these ranks, by their numbers in the job.
      topology: topology of the job.
      line: name for the flight recorder, unique in the job and the same on all these ranks.
      shared: source of the channels' shared memory; None for groups without shared memory.
    """

    def __init__(
        self,
        comm: Any,
        detector: StallDetector,
        ranks: Sequence[int],
        topology: Topology,
        line: str,
        shared: SharedMemory | None = None,
    ) -> None:
        self.comm = comm
        self.ranks = list(ranks)
        self.topology = topology
        self._detector = detector
        self._shared = shared
        self._line = line
        node = topology.node_of(self.ranks[0])
        self._spread = not set(self.ranks) <= set(node)
        self.control = MpiChannel(self._duplicate(), detector, self.ranks, line, spread=self._spread, of_script=True)
        self.channels: Pool[MpiChannel, bool] = Pool(self.control, self._new_channel, "channel")

    def _new_channel(self, shared: bool) -> MpiChannel:
        comm = self._duplicate()
        node = self._node(comm) if shared else None
        line = f"{self._line}, channel {len(self.channels.things) + 1}"
        return MpiChannel(comm, self._detector, self.ranks, line, node, self._spread, self.channels.give_back)

    def _duplicate(self) -> Any:
        with self._detector.inside(f"the making of a communicator of {self._line}", self.ranks):
            return self.comm.Dup()

    def _node(self, comm: Any) -> MpiNode | None:
        if self._shared is None:
            return None
        small_bytes = SMALL_BYTES // comm.size // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        memory = self._shared.take(MpiNode.needed_bytes(small_bytes))
        if memory is None:
            return None
        ranks = self.topology.node_of(comm.rank)
        shards = self.topology.shards_of(comm.rank)
        earlier = self.topology.shards[: shards[0].number]
        reductions = InterNodeReductions(comm, self._detector, shards, earlier, self.ranks) if self._spread else None
        return MpiNode(self._shared, memory, self._detector, ranks, shards, reductions, small_bytes)

    def close(self) -> None:
        """Free all communicators, which are not used any more. Collective: these ranks."""
        self.control.arrive(f"the closing of the group of the ranks {', '.join(map(str, self.ranks))}")
        with self._detector.inside(f"the closing of {self._line}", self.ranks):
            for channel in [*self.channels.things, self.control]:
                channel.close()


class MpiGroup:
    """Some of the job's ranks; see ``interfaces.Group``."""

    def __init__(self, communicators: Communicators) -> None:
        self._communicators = communicators
        self.ranks: Sequence[int] = communicators.ranks
        self.rank = communicators.comm.rank
        self.size = communicators.comm.size
        self.control: Channel = communicators.control
        self.kept: dict[Any, Any] = {}

    def channel(self, place: str, shared: bool = False) -> Channel:
        return self._communicators.channels.take(place, shared)

    def close(self) -> None:
        raise RuntimeError("the group of all ranks is not closed before the job ends")


class MpiSubgroup(MpiGroup):
    """A group that ``Groups`` has made."""

    def __init__(self, communicators: Communicators, groups: Groups) -> None:
        super().__init__(communicators)
        self._groups = groups
        self._returning = weakref.finalize(self, groups.give_back, communicators)
        self._returning.atexit = False

    def close(self) -> None:
        if self._returning.detach() is not None:
            self.kept.clear()
            self._communicators.close()
            self._groups.closed(self._communicators)


class Groups:
    """All groups except the group of all ranks. A group that all its ranks have dropped is reused for the same ranks.

    Args:
      comm: communicator of all ranks.
      detector: stall detector of this rank.
      topology: topology of the job.
    """

    def __init__(self, comm: Any, detector: StallDetector, topology: Topology) -> None:
        self._comm = comm
        self._detector = detector
        self._topology = topology
        self._pools: dict[tuple[int, ...], tuple[MpiChannel, Pool[Communicators, None]]] = {}

    def take(self, ranks: Sequence[int]) -> MpiSubgroup:
        """Return a group of these ranks. Collective: these ranks."""
        place = f"a group of the ranks {', '.join(map(str, ranks))}"
        self._detector.check(f"the making of {place}")
        if tuple(ranks) not in self._pools:
            self._pools[tuple(ranks)] = self._first(ranks, place)
        _, pool = self._pools[tuple(ranks)]
        return MpiSubgroup(pool.take(place, None), self)

    def _meet(self, ranks: Sequence[int], place: str) -> None:
        """Wait until all of these ranks are here, and check that they make the same group.

        Raises:
          DisagreementError: another rank makes another group.
        """
        first, *others = ranks
        number = self._detector.count(ranks)
        own = np.array([zlib.crc32(place.encode())], np.int64)
        if self._comm.rank == first:
            came = np.zeros((len(others), 1), np.int64)
            self._wait([self._comm.Irecv(c, rank) for c, rank in zip(came, others, strict=True)], place, ranks, number)
            self._wait([self._comm.Isend(own, rank) for rank in others], place, ranks, number)
        else:
            came = np.zeros((1, 1), np.int64)
            self._wait([self._comm.Isend(own, first), self._comm.Irecv(came, first)], place, ranks, number)
        if (came != own).any():
            raise DisagreementError(f"rank {self._comm.rank} makes {place}, but another rank makes another group")

    def _wait(self, requests: Sequence[Any], place: str, ranks: Sequence[int], number: int) -> None:
        for request in requests:
            self._detector.wait(request, place, ranks, number=number)

    def _first(self, ranks: Sequence[int], place: str) -> tuple[MpiChannel, Pool[Communicators, None]]:
        self._meet(ranks, place)
        with self._detector.inside(place, ranks):
            comm = _some(self._comm, ranks)
        words, numbers = _words(ranks), itertools.count(1)

        def make(kind: None) -> Communicators:
            return Communicators(comm, self._detector, ranks, self._topology, f"{words}, group {next(numbers)}")

        base = MpiChannel(comm, self._detector, list(ranks), f"{words}, groups")
        return base, Pool(base, make, "set of communicators")

    def give_back(self, communicators: Communicators) -> None:
        """Take the communicators of a group back that this rank has dropped. Not collective."""
        _, pool = self._pools[tuple(communicators.ranks)]
        pool.give_back(communicators)

    def closed(self, communicators: Communicators) -> None:
        """Forget communicators that were closed. Collective: their ranks."""
        base, pool = self._pools[tuple(communicators.ranks)]
        pool.remove(communicators)
        if not pool.things:
            with self._detector.inside("the closing of their communicators", communicators.ranks):
                base.close()
            del self._pools[tuple(communicators.ranks)]


def _some(comm: Any, ranks: Sequence[int]) -> Any:
    """Return a communicator of some of another communicator's ranks. Collective: those ranks."""
    everyone = comm.Get_group()
    chosen = everyone.Incl(list(ranks))
    made = comm.Create_group(chosen)
    chosen.Free()
    everyone.Free()
    return made


def _words(ranks: Sequence[int]) -> str:
    """Return a short text for some ranks, which differs from the text of any other ranks."""
    words = ", ".join(map(str, ranks))
    return f"ranks {words}" if len(words) < _LONGEST_WORDS else f"{len(ranks)} ranks {zlib.crc32(words.encode()):08x}"
