"""The world of one process, without a launcher or MPI: every operation is complete at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfdist.core.reduce_ops import Op
from tfdist.core.rounded_wire import Wire
from tfdist.core.settings import Settings
from tfdist.core.topology import Topology
from tfdist.record.flight_recorder import SILENT, FlightRecorder
from tfdist.transport.interfaces import Channel, Group, Node, Sums
from tfdist.transport.saving import Saving
from tfdist.transport.stall_detection import StallDetector
from tfdist.transport.state_line import NoOthers


class OneProcess:
    """The world without a launcher: every operation is complete at once."""

    rank = 0
    size = 1
    ranks: Sequence[int] = (0,)
    local_rank = 0
    local_size = 1
    topology = Topology(((0,),))
    node: Node | None = None
    between_machines = takes_attachments = False
    background = patient = False
    notes: list[list[int]] = []
    hosts: Sequence[str] = ("",)

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.recorder: FlightRecorder = SILENT
        states = NoOthers()
        self.waits = StallDetector(states, settings)
        self.saves = Saving(self.waits, states, (), settings)
        self.control: Channel = self
        self.kept: dict[Any, Any] = {}

    def arrive(self, place: str, flags: int = 0, size_bytes: int = 0, notes: Sequence[int] = ()) -> list[int]:
        return [flags]

    def count(self) -> None:
        pass

    def attach(self, array: np.ndarray) -> None:
        pass

    def attachments(self) -> list[np.ndarray]:
        return []

    def done(self) -> tuple[float, float]:
        return 0.0, 0.0

    def give_up(self, error: BaseException) -> None:
        pass

    def all_reduce(self, array: np.ndarray, op: Op = "sum", divisor: int = 1) -> None:
        pass

    def begin(self, array: np.ndarray, op: Op = "sum", divisor: int = 1, wire: Wire | None = None) -> Sums:
        return Final(0, array.size)

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        pass

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        return [array]

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(parts)

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any, place: str, root: int = 0) -> Any:
        return value

    def channel(self, place: str, shared: bool = False) -> Channel:
        return self

    def give_back(self) -> None:
        pass

    def close(self) -> None:
        pass

    def mapped_memory_obstacle(self) -> str:
        return "there is one process"

    def group(self, ranks: Sequence[int]) -> Group:
        return self

    def local_affinities(self, cores: frozenset[int]) -> list[frozenset[int]]:
        return [cores]

    def description(self) -> str:
        return "none: one process"

    def abort(self, exit_code: int) -> None:
        sys.exit(exit_code)

    def end(self, exit_code: int = 0, note: int = 0) -> list[int]:
        return [note]

    def finish(self) -> None:
        pass


class Final:
    """See ``interfaces.Sums``. No other rank contributes."""

    def __init__(self, start: int, stop: int) -> None:
        self._next, self._stop = start, stop

    def offer(self, stop: int) -> list[slice]:
        start, self._next = self._next, stop
        return [slice(start, stop)] if stop > start else []

    def finish(self) -> Iterator[slice]:
        yield from self.offer(self._stop)
