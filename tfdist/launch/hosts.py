"""The machines of a job: which, and how many ranks on each."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_HERE = {"localhost", "127.0.0.1", "::1"}


class LaunchError(ValueError):
    """The job cannot be started so: the value, what is wrong, the remedy."""


class Host(NamedTuple):
    """A machine and how many ranks it gets; before ``shared_out``: its slots, 0 where none are stated."""

    name: str
    ranks: int


def parse(text: str) -> tuple[Host, ...]:
    """The hosts of ``host1:2,host2:2``.

    Raises:
      LaunchError: an entry is not ``host`` or ``host:slots``, or a host stands twice.
    """
    hosts = []
    for entry in text.split(","):
        match = re.fullmatch(r"([\w.-]+|\[[\w:]+\])(?::([1-9]\d*))?", entry.strip())
        if not match:
            raise LaunchError(f"-H {text}: {entry!r} is not a host; write host or host:ranks, with commas between")
        hosts.append(Host(match.group(1), int(match.group(2) or 0)))
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise LaunchError(f"-H {text}: {name} stands there twice; add its ranks up, as in {name}:2")
    return tuple(hosts)


def shared_out(ranks: int | None, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """How many of the ranks run on each host; hosts that get none are left out.

    Slots are filled in order. A host without a number has one slot; without any number the ranks are shared equally.

    Args:
      ranks: of the job; None for as many as there are slots.
      hosts: with their slots.

    Raises:
      LaunchError: more ranks than slots.
    """
    if ranks is not None and not any(host.ranks for host in hosts):
        each, more = divmod(ranks, len(hosts))
        counts = [each + (index < more) for index in range(len(hosts))]
        return tuple(Host(host.name, count) for host, count in zip(hosts, counts, strict=True) if count)
    slots = [Host(host.name, host.ranks or 1) for host in hosts]
    total = sum(slot.ranks for slot in slots)
    left = total if ranks is None else ranks
    if left > total:
        raise LaunchError(
            f"-n {left}: -H has room for {total} ranks only; give its hosts more, as in {slots[0].name}:8"
        )
    filled = []
    for slot in slots:
        filled.append(Host(slot.name, min(slot.ranks, left)))
        left -= filled[-1].ranks
    return tuple(host for host in filled if host.ranks)


def is_here(name: str) -> bool:
    """Whether this is the machine's own name."""
    own = socket.gethostname()
    return name in _HERE | {own, own.split(".")[0]} or name == socket.getfqdn()


_ANSWER_SECONDS = 30.0


def slurm_hosts(variables: Mapping[str, str]) -> tuple[tuple[Host, ...], str]:
    """The hosts of this process's allocation with their ranks, and in words why so many.

    As many ranks as the job has tasks (``--ntasks``, ``--ntasks-per-node``), where ``srun`` would start them; else as
    without a batch system: one a GPU, or one on each host, where TensorFlow's threads take all cores.

    Args:
      variables: of the environment.

    Raises:
      LaunchError: Slurm does not tell the hosts.
    """
    names = _host_names(variables.get("SLURM_JOB_NODELIST", ""))
    if "SLURM_NTASKS" in variables:
        counts, reason = counts_of_nodes(variables.get("SLURM_TASKS_PER_NODE", "")), "Slurm's tasks"
    else:
        gpus = variables.get("SLURM_GPUS_ON_NODE", "")
        each = int(gpus) if re.fullmatch(r"[1-9]\d*", gpus) else 0
        counts = [each or 1] * len(names)
        reason = "one a GPU" if each else "one a host, since the job says no --ntasks"
    if not names or len(counts) != len(names):
        raise LaunchError(
            f"Slurm's job has the hosts {','.join(names) or 'nobody knows'} and ranks for {len(counts)} of them "
            f"(SLURM_TASKS_PER_NODE={variables.get('SLURM_TASKS_PER_NODE')}); write tfdist-run -H host1:2,host2:2 …"
        )
    return tuple(Host(name, count) for name, count in zip(names, counts, strict=True)), reason


def counts_of_nodes(text: str) -> list[int]:
    """A number for each node, as Slurm writes them: ``2(x3),1`` is 2, 2, 2, 1."""
    entries = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry) for entry in text.split(",")]
    if None in entries:
        return []
    return [int(entry[1]) for entry in entries if entry for _ in range(int(entry[2] or 1))]


def _host_names(nodes: str) -> Sequence[str]:
    """Of ``node[1-2,7]``: there are more ways to write a list of them than is worth knowing here."""
    if not nodes:  # nothing to ask, and a host outside the job need not have Slurm's commands
        return ()
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{nodes}: scontrol does not tell these hosts ({error}); write tfdist-run -H …") from None
    return done.stdout.split()
