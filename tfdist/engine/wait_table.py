"""Wait table: how long each rank waits for the others, logged every so many steps (``TFDIST_WAIT_TABLE``).

The ranks' numbers travel with an arrival that takes place anyway.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

_SHOWN = 16  # ranks; of more, those for which the others wait longest


class Times(NamedTuple):
    """Times of one rank.

    Attributes:
      step_us: mean time from step to step, in microseconds; 0: not known yet.
      exchange_us: mean time in the exchanges of a step.
      wait_us: the part of it in which it waited for other ranks.
    """

    step_us: int
    exchange_us: int
    wait_us: int


class WaitTable:
    """Adds up this rank's times since the last table.

    Args:
      every: number of steps of a table.
      exchanges: number of exchanges of a step.
      hosts: name of each rank's host.
    """

    def __init__(self, every: int, exchanges: int, hosts: Sequence[str]) -> None:
        self._every, self._exchanges, self._hosts = every, exchanges, hosts
        self._begun: float | None = None
        self._exchanged = self._waited = 0.0
        self._count = 0

    def add(self, seconds: float, waited: float) -> None:
        """Add the time of an exchange, and the part of it in which this rank waited for others."""
        self._exchanged, self._waited, self._count = self._exchanged + seconds, self._waited + waited, self._count + 1

    def due(self, step: int, exchange: int) -> bool:
        """Whether the ranks bring their times to the arrival of an exchange (numbers from 1, and from 0)."""
        return step % self._every == 0 and exchange == self._exchanges - 1

    def times(self) -> Times:
        """Return this rank's times for the present table."""
        # The first table would have the time of the start.
        step = (time.perf_counter() - self._begun) / self._every if self._begun is not None else 0.0
        share = self._exchanges / max(1, self._count)
        return Times(round(1e6 * step), round(1e6 * share * self._exchanged), round(1e6 * share * self._waited))

    def end(self, ranks: Sequence[Sequence[int]], name: str, how: str, step: int) -> str:
        """Begin the next table, and return this one as text.

        Args:
          ranks: times of each rank.
          name: name of the collective.
          how: description of its exchanges.
          step: number of the last step.
        """
        self._begun, self._exchanged, self._waited, self._count = time.perf_counter(), 0.0, 0.0, 0
        title = f"{name}, steps {step - self._every + 1} to {step}, {how}"
        return table([Times(*times) for times in ranks], self._hosts, title)


def table(ranks: Sequence[Times], hosts: Sequence[str], title: str) -> str:
    """Return a table as text; see ``WaitTable.end``."""
    by_wait = sorted(range(len(ranks)), key=lambda rank: ranks[rank].wait_us)
    shown = sorted(by_wait[:_SHOWN])
    width = max(4, *(len(hosts[rank]) for rank in shown))
    lines = [
        f"{title}; milliseconds a step:",
        f"{'rank':>6}  {'host':<{width}} {'step':>9} {'exchange':>9} {'waiting':>9}",
    ]
    for rank in shown:
        step, exchange, waiting = (us / 1e3 for us in ranks[rank])
        step_ms = f"{step:9.1f}" if step else f"{'-':>9}"
        lines.append(f"{rank:>6}  {hosts[rank]:<{width}} {step_ms} {exchange:9.1f} {waiting:9.1f}")
    if rest := by_wait[_SHOWN:]:
        mean = sum(ranks[rank].wait_us for rank in rest) / len(rest) / 1e3
        lines.append(f"{len(rest)} other ranks wait for {mean:.1f} ms on average")
    late, most = (by_wait[0], ranks[by_wait[0]].wait_us / 1e3), ranks[by_wait[-1]].wait_us / 1e3
    lines.append(f"rank {late[0]} comes last most: it waits for {late[1]:.1f} ms, and another for {most:.1f} ms")
    return "\n".join(lines)
