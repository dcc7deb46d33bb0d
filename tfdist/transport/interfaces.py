"""Interfaces of the ranks, without implementation: world, process group, channel (a communicator), node, barrier.

Every operation first waits until all ranks have arrived, with a deadline and without busy waiting, and compares their
arguments. The message itself then waits only for the network.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tfdist.core.reduce_ops import Op
from tfdist.core.rounded_wire import Wire
from tfdist.core.topology import Topology
from tfdist.processes.mapped_memory import MappedMemory
from tfdist.record.flight_recorder import FlightRecorder
from tfdist.transport.saving import Saving
from tfdist.transport.stall_detection import StallDetector

SMALL_BYTES = 1 << 18  # of all ranks' inputs together, in each of a node's two staging areas


class Node(Protocol):
    """The ranks of one machine, and the memory that a channel uses there.

    Attributes:
      ranks: ranks of the channel on this node, in the order of the inputs.
      index: index of this rank among them.
      alone: True if there is no other node.
      memory: access to memory that the other ranks have made for mapping.
      inputs: two staging areas, used in turns: uint8 [SMALL_BYTES over the number of ranks] for each rank's input.
    """

    ranks: Sequence[int]
    index: int
    alone: bool
    memory: MappedMemory
    inputs: Sequence[Sequence[np.ndarray]]

    def enter(self) -> None:
        """Enter a barrier of the node's ranks. Collective: the node."""

    def wait(self, place: str) -> None:
        """Wait until all ranks of the node have entered; this rank may do other work in between."""

    def next_area(self) -> int:
        """Return the index of the staging area for this arrival; all ranks of the node call it before they arrive."""

    def own(self, elements: int, itemsize: int) -> slice:
        """Return the slice that this rank adds of an array with so many elements."""

    def begin(self, array: np.ndarray, op: Op, place: str, wire: Wire | None = None) -> Sums:
        """Combine this rank's slice of the array with the other nodes' slices, in place.

        Collective: all ranks.

        For a mean each node has divided its sum before: a narrow dtype may represent the mean, but not the sum.
        """


class Sums(Protocol):
    """An array that is combined while its elements become ready. Only ``finish`` waits."""

    def offer(self, stop: int) -> list[slice]:
        """Offer this rank's elements up to ``stop``, which are ready.

        Returns:
          The slices that have been combined since the last call.
        """

    def finish(self) -> Iterator[slice]:
        """Offer all elements, and yield the slices that are combined, as they come.

        Raises:
          PeerError: messages of another rank do not come.
        """


class Channel(Protocol):
    """An ordered sequence of operations between all ranks of a group, independent of other channels.

    Collective: every method, in the same order on all ranks. Arrays must be C-contiguous and writable; they are
    changed in place. ``place`` describes the operation for messages, in the same words on all ranks.

    Attributes:
      rank: number of this process in the group.
      size: number of ranks in the group.
      node: the node's memory; None if it was not asked for or is not available.
      background: True if a thread that does not train waits for arrivals; the training thread may wait elsewhere.
      patient: True if an arrival waits without a deadline as long as the other ranks run.
      between_machines: True if the group's ranks are on several machines.
      notes: notes that each rank brought to the last arrival; empty if it had none.
      takes_attachments: True if an arrival passes a network, where a few hundred more bytes cost no time.
    """

    rank: int
    size: int
    node: Node | None
    background: bool
    patient: bool
    between_machines: bool
    takes_attachments: bool
    notes: list[list[int]]

    def arrive(self, place: str, flags: int = 0, size_bytes: int = 0, notes: Sequence[int] = ()) -> list[int]:
        """Wait for all ranks and return the flags of each rank, by rank.

        Args:
          place: description of the operation.
          flags: number for the other ranks.
          size_bytes: size of the operation, the same on all ranks.
          notes: up to four further numbers for the other ranks, as many on all ranks.

        Raises:
          DisagreementError: ``place`` or ``size_bytes`` differs between ranks.
          PeerError: a rank is missing; or this rank has given up before, for any reason.
        """

    def count(self) -> None:
        """Not collective: count a call of all ranks, if no arrival of this thread does so. See ``saves.Position``."""

    def attach(self, array: np.ndarray) -> None:
        """Not collective: send some bytes to all ranks with the next arrival.

        Args:
          array: uint8 [a multiple of 8], of the same size on all ranks.
        """

    def attachments(self) -> list[np.ndarray]:
        """Not collective: return what each rank attached to the last arrival, in the order of the ranks."""

    def done(self) -> tuple[float, float]:
        """Not collective: tell the flight recorder that the operation after the arrival is complete on this rank.

        Returns:
          Seconds that it took, and those of them in which this rank waited for others.
        """

    def give_back(self) -> None:
        """Not collective: release the channel on this rank; it is reused after all ranks have released it."""

    def give_up(self, error: BaseException) -> None:
        """Not collective: leave step with the other ranks; from now on this rank refuses all that needs them."""

    def all_reduce(self, array: np.ndarray, op: Op = "sum", divisor: int = 1) -> None:
        """Combine over the ranks, in place, and divide. All must have arrived with the same shape and dtype."""

    def begin(self, array: np.ndarray, op: Op = "sum", divisor: int = 1, wire: Wire | None = None) -> Sums:
        """Begin an ``all_reduce`` before all elements are ready; a network transfers large arrays piece by piece."""

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        """Copy the root's content to every rank, in place. All must have arrived with the same shape and dtype."""

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return every rank's bytes (uint8 [any length]), in the order of the ranks. All must have arrived."""

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send part i (uint8 [any length]) to rank i, and return the parts received. All must have arrived."""

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        """Return every rank's value (picklable), in the order of the ranks."""

    def broadcast_object(self, value: Any, place: str, root: int = 0) -> Any:
        """Return the root's value (picklable) on every rank."""


class Group(Hashable, Protocol):
    """Some or all of the ranks.

    Attributes:
      ranks: ranks of the job, in the order of their numbers in the group.
      rank: number of this process in the group.
      size: number of ranks in the group.
      control: channel for occasional operations.
      kept: objects that other modules keep as long as this group lives, by their keys.
    """

    ranks: Sequence[int]
    rank: int
    size: int
    control: Channel
    kept: dict[Any, Any]

    def channel(self, place: str, shared: bool = False) -> Channel:
        """Open a new channel. Collective: the group's ranks, in the same order.

        Args:
          place: purpose of the channel, for messages.
          shared: True if it needs memory of the node. If any node refuses, no rank has it.
        """

    def close(self) -> None:
        """Release all resources; its channels refuse later calls. Collective: the group's ranks."""


class World(Group, Protocol):
    """All ranks of the job. Attributes with ``local_`` count the ranks of this machine.

    Attributes:
      topology: which ranks share memory.
      recorder: flight recorder of this rank.
      hosts: name of each rank's host.
      waits: this rank's waits for others, with what it tells them while they wait.
      saves: this rank's saves.
    """

    recorder: FlightRecorder
    hosts: Sequence[str]
    waits: StallDetector
    saves: Saving
    local_rank: int
    local_size: int
    topology: Topology

    def mapped_memory_obstacle(self) -> str:
        """Return why some rank cannot map memory that another rank of its node has made; empty if all can.

        Collective: all ranks at the first call, which tries it.
        """

    def group(self, ranks: Sequence[int]) -> Group:
        """Make a group of some ranks. Collective: those ranks."""

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        """Return the cores that each rank of this machine may use. Collective: all ranks."""

    def description(self) -> str:
        """Return a description of the library in use."""

    def abort(self, exit_code: int) -> None:
        """End all ranks at once."""

    def end(self, exit_code: int = 0, note: int = 0) -> list[int]:
        """Tell the other ranks that this rank's program is over, and wait for theirs; after ``give_up`` not for ever.

        Returns:
          The notes of all ranks; empty if a rank is gone.
        """

    def finish(self) -> None:
        """End MPI when all ranks have come to this call, the last one of this process."""
