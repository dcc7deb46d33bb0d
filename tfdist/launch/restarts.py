"""A job that has failed starts again, from its last checkpoint if its program writes any, on the hosts that answer.

The number of ranks of a job is fixed while it runs; between two attempts it may change. What the program makes of that
is its own. Knows nothing of launchers: ``start`` and ``ask`` are handed in.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from tfdist.launch.hosts import Host, LaunchError, shared_out
from tfdist.launch.supervision import Ended

PAUSE_SECONDS = 3.0  # what the ranks of the last attempt have not let go of yet: ports, locks, memory


@dataclasses.dataclass(frozen=True)
class Policy:
    """How often a job may start again, and with how many ranks.

    Attributes:
      restarts: at most, after the first attempt.
      ranks: of the first attempt, and at most of the others.
      least: ranks of an attempt; with fewer there is none.
    """

    restarts: int
    ranks: int
    least: int

    @classmethod
    def of(cls, restarts: int | None, ranks: int, least: int | None) -> Policy:
        """What ``--max-restarts`` and ``--min-ranks`` say; None where they are not given.

        Raises:
          LaunchError: the one has no effect without the other, or exceeds the ranks.
        """
        if least is not None and restarts is None:
            raise LaunchError(f"--min-ranks {least}: has an effect with --max-restarts only; add --max-restarts 3")
        if least is not None and least > ranks:
            raise LaunchError(f"--min-ranks {least}: the job begins with {ranks} ranks; give at most {ranks}")
        return cls(restarts or 0, ranks, ranks if least is None else least)


class Signals(Protocol):
    """What restarts must know of signals to this process."""

    ending: signal.Signals | None

    def wait(self, seconds: float) -> None:
        """Sleep so long, or until a signal is to end the job."""


def room(given: Sequence[Host], machines: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts that attempts may use, each with the ranks it has room for.

    Args:
      given: hosts with their slots, 0 where none are stated.
      machines: those with ranks in the first attempt.
    """
    if not any(host.ranks for host in given):  # shared equally: each has room for its share
        return tuple(machines)
    return tuple(Host(host.name, host.ranks or 1) for host in given)


def on_those_left(hosts: Sequence[Host], ranks: int, silent: Collection[str]) -> tuple[Host, ...]:
    """The ranks on the hosts that answer, in the order of the hosts; fewer ranks if there is no room for all.

    Args:
      hosts: with the ranks they have room for.
      ranks: at most.
      silent: the hosts that do not answer.
    """
    left = [host for host in hosts if host.name not in silent]
    return shared_out(min(ranks, sum(host.ranks for host in left)), left) if left else ()


def run(
    policy: Policy,
    machines: tuple[Host, ...],
    spare: Sequence[Host],
    signals: Signals,
    start: Callable[[tuple[Host, ...], int, int], Ended],
    ask: Callable[[Sequence[str]], Mapping[str, Sequence[str]]],
    say: Callable[[str], None],
) -> int:
    """Run a job, and again while it fails and may.

    Args:
      policy: how often, and with how many ranks.
      machines: of the first attempt, with their ranks; none for one that names no hosts.
      spare: all hosts that there is room on, those included.
      signals: one that is to end the job ends this, too.
      start: runs an attempt on hosts with so many ranks, after so many restarts.
      ask: what is wrong with each of these hosts that cannot have ranks now.
      say: writes a line to the log.

    Returns:
      The exit code of the last attempt.
    """
    ranks, attempts = policy.ranks, policy.restarts + 1
    for attempt in itertools.count(1):
        ended = start(machines, ranks, attempt - 1)
        if policy.restarts and (ended.code or attempt > 1):
            say(f"attempt {attempt} of {attempts} ended with exit code {ended.code} after {ended.seconds:.0f} s")
        if not ended.code or attempt == attempts:
            break
        signals.wait(PAUSE_SECONDS)
        if machines and signals.ending is None:
            silent = ask([host.name for host in spare])
            for problem in itertools.chain(*silent.values()):
                say(problem)
            machines = on_those_left(spare, policy.ranks, silent)
            ranks = sum(host.ranks for host in machines)
        if signals.ending is not None:
            say(f"{signals.ending.name} was to end the job: it does not start again")
            break
        if ranks < policy.least:
            say(
                f"the hosts that are left have room for {ranks} of {policy.ranks} ranks, and --min-ranks is "
                f"{policy.least}: the job does not start again"
            )
            break
        on = f" on {','.join(f'{host.name}:{host.ranks}' for host in machines)}" if machines else ""
        fewer = f" instead of {policy.ranks}" if ranks < policy.ranks else ""
        say(f"attempt {attempt + 1} of {attempts}: {ranks} rank{'s' * (ranks > 1)}{fewer}{on}")
    return ended.code
