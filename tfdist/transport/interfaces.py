"""Interfaces of the ranks: world, process group, channel (a communicator), node, barrier; without saying how.

Every operation first waits, with a deadline and without burning the core, until all ranks have arrived, and compares
what they bring; the message itself then never waits for anybody but the network.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tfdist.core.flight_recorder import Recorder
from tfdist.core.reduce_ops import Op
from tfdist.core.topology import Topology
from tfdist.core.wires.format import Wire
from tfdist.processes.mapped_memory import MappedMemory
from tfdist.processes.process_memory import ProcessMemory
from tfdist.transport.saves import PendingSave, Position


class SetupError(RuntimeError):
    """The job was started by a launcher, but the ranks cannot find each other."""


class PeerError(RuntimeError):
    """Another rank is missing, has ended, or waits somewhere else.

    A rank that catches it can save what it has. It is not in step with the others any more: what is collective is
    refused from then on.
    """


class DisagreementError(RuntimeError):
    """The ranks bring different things to the same operation."""


@dataclasses.dataclass(frozen=True)
class NodeMemory:
    """What a channel uses of a node: staging memory, or what the others read where it lies, or map.

    Attributes:
      piece_bytes: of staging, twice; 0: none.
      addresses: of tensors, that each rank publishes; 0: none.
      mapped: numbers that each rank publishes of memory for the others to map; 0: none.
    """

    piece_bytes: int
    addresses: int
    mapped: int = 0

    def with_other(self, other: NodeMemory) -> NodeMemory:
        """What both can do with."""
        return NodeMemory(
            max(self.piece_bytes, other.piece_bytes),
            max(self.addresses, other.addresses),
            max(self.mapped, other.mapped),
        )


@dataclasses.dataclass(frozen=True)
class Chunking:
    """How arrays travel between machines.

    Attributes:
      message_bytes: at most.
      pieces: under way at a time, each of a message to every other rank that has to do with it, and one from there.
    """

    message_bytes: int = 1 << 16
    pieces: int = 16

    def __str__(self) -> str:
        return f"{self.pieces} x {self.message_bytes // 1024} KiB"


class SplitBarrier(Protocol):
    """Where a node's ranks meet, in two halves: something can be done in between."""

    def enter(self) -> None:
        """This rank is here. Collective: the node."""

    def wait(self, place: str) -> None:
        """Wait until all are."""


class Node(Protocol):
    """The ranks of one machine that share memory, as one channel uses it: staging areas, or each other's own memory.

    Attributes:
      ranks: of the channel, in the order of the inputs.
      index: of this rank among them.
      alone: there is no other node.
      process_memory: the others', where it may be read and written; else None.
      mapped_memory: the others', where that is wanted; else None.
      inputs: staging memory, twice, in turns: uint8 [piece] for each of the ranks, its contribution.
      sums: likewise uint8 [piece], of which each rank writes its slice.
      copied: where they meet when they have copied: in with staging, else the results out; and before, for rows, whose
        results have no place until all have counted them.
      added: where they meet when they have added.
    """

    ranks: Sequence[int]
    index: int
    alone: bool
    process_memory: ProcessMemory | None
    mapped_memory: MappedMemory | None
    inputs: Sequence[Sequence[np.ndarray]]
    sums: Sequence[np.ndarray]
    copied: SplitBarrier
    added: SplitBarrier

    def scratch(self, size_bytes: int) -> np.ndarray:
        """Memory of this rank, uint8, for one operation of the channel at a time; the same for all of them."""

    def next_area(self) -> int:
        """Which of the two staging areas is this arrival's; called by all its ranks before they arrive."""

    def own(self, elements: int, itemsize: int) -> slice:
        """Of an array of so many elements those that this rank adds."""

    def begin(self, array: np.ndarray, op: Op, place: str, wire: Wire | None = None) -> Sums:
        """Combine what this rank adds of the array with the other nodes', in place, at the channel's chunking.

        Collective: all ranks.

        For a mean each node has divided its sum: the sum of a narrow dtype may not be representable where the mean is.
        """


class Sums(Protocol):
    """An array that is combined as its elements become ready; nothing is waited for but in ``finish``."""

    def offer(self, stop: int) -> list[slice]:
        """This rank's elements are ready up to there.

        Returns:
          The elements that have been combined, since the last call.
        """

    def finish(self) -> Iterator[slice]:
        """All are; likewise, as they come.

        Raises:
          PeerError: nothing comes.
        """


class Channel(Protocol):
    """An ordered line of operations between all ranks of a group, independent of other channels.

    Collective: every method, in the same order on all ranks. Arrays must be C-contiguous and writable; they are
    changed in place. ``place`` says in words what is being done, alike on all ranks.

    Attributes:
      rank: of this process in the group.
      size: of the group.
      node: shared memory, if it was asked for and is to be had.
      chunking: between machines; whoever uses the channel may set another one, alike on all ranks.
      background: a thread that does not train waits for its arrivals; the training thread may wait elsewhere.
      patient: they are waited for as long as the others run.
      takes_attachments: an arrival passes a network, where some hundred bytes more cost no time.
    """

    rank: int
    size: int
    node: Node | None
    chunking: Chunking
    background: bool
    patient: bool
    takes_attachments: bool

    def arrive(self, place: str, flags: int = 0, size_bytes: int = 0) -> list[int]:
        """Wait for all ranks; the flags of each.

        Raises:
          DisagreementError: ``place`` or ``size_bytes`` differs between ranks.
          PeerError: a rank is missing; or this rank has given up before, for whatever reason.
        """

    def attach(self, array: np.ndarray) -> None:
        """Not collective: have some bytes brought to all ranks with the next arrival.

        Args:
          array: uint8 [a multiple of 8], as many on all ranks.
        """

    def attachments(self) -> list[np.ndarray]:
        """Not collective: what each rank had attached in the last arrival, in the order of the ranks."""

    def done(self) -> None:
        """Not collective: what was arrived for is complete here; for the flight recorder."""

    def give_back(self) -> None:
        """Not collective: this rank needs it no more; when no rank does, it is used again."""

    def give_up(self, error: BaseException) -> None:
        """Not collective: this rank does not go on where the others do, and refuses all that needs them from now on."""

    def all_reduce(self, array: np.ndarray, op: Op = "sum", divisor: int = 1) -> None:
        """Combine over the ranks, in place, and divide; all must have arrived with the same shape and dtype."""

    def begin(self, array: np.ndarray, op: Op = "sum", divisor: int = 1, wire: Wire | None = None) -> Sums:
        """Likewise, as the array's elements become ready; over a network so, if they are many."""

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        """One rank's content to every rank, in place; all must have arrived with the same shape and dtype."""

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Every rank's bytes (uint8 [any length]), in the order of the ranks; all must have arrived."""

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Part i of every rank (uint8 [any length]) to rank i; all must have arrived."""

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        """Every rank's value (picklable), in the order of the ranks."""

    def broadcast_object(self, value: Any, place: str, root: int = 0) -> Any:
        """One rank's value (picklable) on every rank."""


class Group(Hashable, Protocol):
    """Some or all of the ranks.

    Attributes:
      ranks: of the job, in the order of their numbers in the group.
      rank: of this process in the group.
      control: for what happens now and then.
      kept: what others keep as long as this object lives, by their keys.
    """

    ranks: Sequence[int]
    rank: int
    size: int
    control: Channel
    kept: dict[Any, Any]

    def channel(self, place: str, sharing: NodeMemory | None = None) -> Channel:
        """A channel of its own. Collective: the group's ranks, in the same order.

        Args:
          place: what it is for, in words.
          sharing: what it uses of a node. If any node refuses, no rank has it.
        """

    def close(self) -> None:
        """Give everything back; its channels refuse what comes later. Collective: the group's ranks."""


class World(Group, Protocol):
    """All ranks: ``local_`` counts those of this machine.

    Attributes:
      topology: which share memory.
      recorder: of what this rank does with the others.
      position: of this rank in the order of the calls that all ranks make.
    """

    recorder: Recorder
    position: Position
    local_rank: int
    local_size: int
    topology: Topology

    def process_memory_obstacle(self) -> str:
        """Why some rank may not read and write the memory of another of its node; empty if all may."""

    def mapped_memory_obstacle(self) -> str:
        """Why some rank cannot map memory that another of its node has made; empty if all can.

        Collective: all ranks at the first call, which tries it.
        """

    def group(self, ranks: Sequence[int]) -> Group:
        """Some of the ranks. Collective: those ranks."""

    def alone(self, reason: str) -> contextlib.AbstractContextManager[None]:
        """Tell the others, while they wait, what this rank does without them."""

    def announce(self, kind: str, what: str = "") -> None:
        """Tell the others what this rank is about: see ``stall_detection``."""

    def called(self) -> None:
        """A thread of the script's begins something that needs the others."""

    def save(self, path: str, site: str, follows: bool = False) -> PendingSave:
        """Not collective: begin to save what other ranks may save here, too; wait for the one that writes it.

        Args:
          path: absolute.
          site: the lines of the program that lead here.
          follows: this rank never writes it.

        Raises:
          Exception: what has gone wrong on the rank that was to write; or PeerError, if it is missing.
        """

    def together(self, what: str, give_up: Callable[[PeerError], None]) -> contextlib.AbstractContextManager[None]:
        """What all ranks do now, and which none ends without the others; see ``stall_detection``."""

    def lost(self) -> str:
        """Which ranks are stopped, gone or cannot be reached, in words; empty if none is known to be."""

    def acting(self) -> contextlib.AbstractContextManager[None]:
        """What this thread, TensorFlow's own, does now, it does for the one that runs the step."""

    def unordered(self) -> contextlib.AbstractContextManager[None]:
        """What begins now may come to several channels, in an order that differs between the ranks."""

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        """The cores that each rank of this machine may use. Collective: all ranks."""

    def description(self) -> str:
        """The library in use."""

    def abort(self, exit_code: int) -> None:
        """End all ranks at once."""

    def end(self, exit_code: int = 0, note: int = 0) -> list[int]:
        """This rank's program is over: tell the others and wait, idle, for theirs; not for ever if it has given up.

        Returns:
          The notes of all ranks, numbers; none if a rank is gone.
        """

    def finish(self) -> None:
        """Nothing is done in this process any more: end MPI, when all ranks have come as far."""
