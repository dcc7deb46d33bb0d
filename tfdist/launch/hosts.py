"""The machines of a job: which, and how many ranks on each."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
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
