"""Restarts: starts a failed job again on the hosts that answer, from its last checkpoint if its program writes any.

The number of ranks is fixed while a job runs; between two attempts it may change. The program must handle this itself.
This module uses no launcher: ``start`` and ``ask`` are arguments.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from tfdist.launch.hosts import Host, LaunchError, shared_out
from tfdist.launch.supervision import Ended, Signals

PAUSE_SECONDS = 3.0  # for the ranks of the last attempt to release ports, locks and memory


@dataclasses.dataclass(frozen=True)
class Policy:
    """How often a job may start again, and with how many ranks.

    Attributes:
      restarts: largest number of attempts after the first one.
      ranks: number of ranks of the first attempt, and the largest number for the others.
      least: smallest number of ranks of an attempt.
    """

    restarts: int
    ranks: int
    least: int

    @classmethod
    def of(cls, restarts: int | None, ranks: int, least: int | None) -> Policy:
        """Return the policy of ``--max-restarts`` and ``--min-ranks``; None for an option that is not given.

        Raises:
          LaunchError: ``--min-ranks`` is given without ``--max-restarts``, or exceeds the ranks.
        """
        if least is not None and restarts is None:
            raise LaunchError(f"--min-ranks {least}: has an effect with --max-restarts only; add --max-restarts 3")
        if least is not None and least > ranks:
            raise LaunchError(f"--min-ranks {least}: the job begins with {ranks} ranks; give at most {ranks}")
        return cls(restarts or 0, ranks, ranks if least is None else least)


def room(given: Sequence[Host], machines: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts that attempts may use, each with the largest number of ranks for it.

    Args:
      given: hosts with their slots, 0 if not stated.
      machines: hosts with their ranks in the first attempt.
    """
    if not any(host.ranks for host in given):  # shared equally: each has room for its share
        return tuple(machines)
    return tuple(Host(host.name, host.ranks or 1) for host in given)


def on_remaining_hosts(hosts: Sequence[Host], ranks: int, silent: Collection[str]) -> tuple[Host, ...]:
    """Distribute the ranks over the hosts that answer, in order; fewer ranks if there is no room for all.

    Args:
      hosts: hosts with the largest number of ranks for each.
      ranks: largest number of ranks.
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
    """Run a job, and run it again while it fails and the policy allows this.

    Args:
      policy: number of attempts and of ranks.
      machines: hosts of the first attempt, with their ranks; empty if no hosts are named.
      spare: all hosts with room for ranks, those of the first attempt included.
      signals: signals to this process; after a signal that is to end the job there are no more attempts.
      start: function that runs an attempt: (hosts, number of ranks, number of restarts) -> its end.
      ask: function that checks hosts: (names) -> problems of the hosts that cannot run ranks now.
      say: function that logs a line.

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
            machines = on_remaining_hosts(spare, policy.ranks, silent)
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
