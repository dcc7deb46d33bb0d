"""First meeting: the ranks exchange first messages before they share anything, so that a missing rank can be named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.transport.calls import Call
from tfdist.transport.state_line import RankState

_TAG = 31_999  # the script may use the same communicator; every MPI allows tags up to 32,767


class FirstMeeting:
    """Rank 0 gets a message of each rank, then answers all. A ``stall_detection.Request`` and ``state_line.States``.

    No message is left in the communicator afterwards. Collective: all ranks.

    Args:
      comm: communicator of all ranks.
      place: description for messages, the same on every rank.
    """

    def __init__(self, comm: Any, place: str) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._place = place
        others = range(1, self.size) if self.rank == 0 else [0]
        self._awaited = {other: comm.Irecv(np.empty(0, np.uint8), other, _TAG) for other in others}
        self._sent = [] if self.rank == 0 else [self._send(0)]
        self._over = False

    def _send(self, other: int) -> Any:
        return self._comm.Isend(np.empty(0, np.uint8), other, _TAG)

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        """Return whether all ranks have come."""
        self._awaited = {rank: request for rank, request in self._awaited.items() if not request.Test()}
        if self._awaited:
            return False
        if self.rank == 0 and not self._sent:
            self._sent = [self._send(other) for other in range(1, self.size)]
        self._over = all([request.Test() for request in self._sent])
        return self._over

    def tell(self, kind: str, what: str) -> None:
        """Do nothing: no other rank can read it yet."""

    def tell_waits(self, waits: Sequence[Call] | None) -> None:
        """Do nothing: no other rank can read it yet."""

    def tell_saves(self, saves: bytes) -> None:
        """Do nothing: no other rank can read it yet."""

    def tell_position(self, position: int) -> None:
        """Do nothing: no other rank can read it yet."""

    def enter(self, line: int, number: int, position: int) -> None:
        """Do nothing: no other rank can read it yet."""

    def read(self, soon: bool = False) -> Mapping[int, RankState]:
        """Return the states of the other ranks, as far as their messages have come."""
        here = RankState("unknown") if self._over else RankState("waiting", self._place)
        missing = RankState("absent" if self.rank == 0 else "gathering")
        others = (rank for rank in range(self.size) if rank != self.rank)
        return {rank: missing if rank in self._awaited else here for rank in others}
