"""Wait table: how long each rank waits for the others, logged every so many steps (``TFDIST_WAIT_TABLE``)."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Sequence

import numpy as np

from tfdist.core.log import announce
from tfdist.transport.interfaces import Channel

_SHOWN = 16  # ranks; of more, those for which the others wait longest


@dataclasses.dataclass
class Times:
    """Times of one rank in the steps of a table.

    Attributes:
      rank: rank of the job.
      host: name of its machine.
      step_ms: mean time from step to step.
      exchange_ms: mean time in the exchanges of a step.
      wait_ms: the part of it in which it waited for other ranks.
    """

    rank: int
    host: str
    step_ms: float
    exchange_ms: float
    wait_ms: float


class WaitTable:
    """Adds up this rank's times, and logs a table of all ranks.

    Args:
      every: number of steps of a table.
      name: name of the collective.
      rank: rank of the job.
    """

    def __init__(self, every: int, name: str, rank: int) -> None:
        self._every, self._name = every, name
        self._own = Times(rank, platform.node(), 0.0, 0.0, 0.0)
        self._begun: float | None = None
        self._steps = 0

    def waited(self, seconds: float) -> None:
        """Add time in which this rank waited for others."""
        self._own.wait_ms += 1e3 * seconds

    def exchanged(self, seconds: float) -> None:
        """Add the time of an exchange, with its wait."""
        self._own.exchange_ms += 1e3 * seconds

    def end_step(self, step: int, channel: Channel, how: str) -> None:
        """Log the table if it is due. Collective: the channel's ranks.

        Args:
          step: number of the step, from 1.
          channel: channel of the collective, whose ranks have arrived.
          how: description of the exchanges, for the first line.
        """
        self._steps += 1
        if step % self._every == 0:
            now = time.perf_counter()
            if self._begun is not None:  # the first table would have the time of the start
                self._own.step_ms = 1e3 * (now - self._begun) / self._steps
            self._own.exchange_ms /= self._steps
            self._own.wait_ms /= self._steps
            told = channel.all_gather(np.frombuffer(json.dumps(dataclasses.asdict(self._own)).encode(), np.uint8))
            announce(table([Times(**json.loads(part.tobytes())) for part in told], self._name, step, self._steps, how))
            self._own = dataclasses.replace(self._own, step_ms=0.0, exchange_ms=0.0, wait_ms=0.0)
            self._begun, self._steps = time.perf_counter(), 0


def table(ranks: Sequence[Times], name: str, step: int, steps: int, how: str) -> str:
    """Return the table as text.

    Args:
      ranks: times of each rank.
      name: name of the collective.
      step: number of the last step.
      steps: number of steps.
      how: description of the exchanges.
    """
    by_wait = sorted(ranks, key=lambda times: times.wait_ms)
    shown = sorted(by_wait[:_SHOWN], key=lambda times: times.rank)
    width = max(4, *(len(times.host) for times in shown))
    lines = [
        f"{name}, steps {step - steps + 1} to {step}, {how}; milliseconds a step:",
        f"{'rank':>6}  {'host':<{width}} {'step':>9} {'exchange':>9} {'waiting':>9}",
    ]
    for times in shown:
        step_ms = f"{times.step_ms:9.1f}" if times.step_ms else f"{'-':>9}"
        lines.append(f"{times.rank:>6}  {times.host:<{width}} {step_ms} {times.exchange_ms:9.1f} {times.wait_ms:9.1f}")
    if len(ranks) > _SHOWN:
        rest = by_wait[_SHOWN:]
        mean = sum(times.wait_ms for times in rest) / len(rest)
        lines.append(f"{len(rest)} other ranks wait for {mean:.1f} ms on average")
    late, most = by_wait[0], by_wait[-1].wait_ms
    lines.append(f"rank {late.rank} comes last most: it waits for {late.wait_ms:.1f} ms, and another for {most:.1f} ms")
    return "\n".join(lines)
