"""Hosts: the machines of a job, and the number of ranks on each."""

from __future__ import annotations

import functools
import re
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_HERE = "localhost", "127.0.0.1"


class LaunchError(ValueError):
    """The job cannot be started. The message has the value, what is wrong, and the remedy."""


class Host(NamedTuple):
    """A machine and its number of ranks; before ``shared_out`` its number of slots, 0 if not stated."""

    name: str
    ranks: int


class Places(NamedTuple):
    """Where a job runs.

    Attributes:
      named: the hosts with their slots, as the user or the MPI operator has named them.
      machines: hosts with their ranks; empty: this host, or the batch system chooses.
      ranks: number of all ranks.
      start_seconds: time for the hosts to come up.
    """

    named: tuple[Host, ...]
    machines: tuple[Host, ...]
    ranks: int
    start_seconds: float = 0.0

    def on_remaining(self, silent: Collection[str]) -> tuple[Host, ...]:
        """Distribute the ranks over the hosts that answer, in order; fewer ranks if there is no room for all.

        Args:
          silent: the hosts that do not answer.
        """
        given = self.named if any(host.ranks for host in self.named) else self.machines  # shared equally: as before
        left = [Host(host.name, host.ranks or 1) for host in given if host.name not in silent]
        return shared_out(min(self.ranks, sum(host.ranks for host in left)), left) if left else ()


# A name that begins with "-" would be an option of ssh.
_HOST = re.compile(r"(\w[\w.-]*)(?::([1-9]\d*))?")
_MOST_RANKS = 1_000_000  # launchers count in 32 bits
# Words of a hostfile that change nothing here: limits and bindings, which tfdist-run sets itself.
_WITHOUT_EFFECT = {"max_slots", "max-slots", "binding", "map"}


def parse(text: str) -> tuple[Host, ...]:
    """Return the hosts of ``host1:2,host2:2``.

    Raises:
      LaunchError: an entry is not ``host`` or ``host:slots``, or a host occurs twice.
    """
    hosts = []
    for entry in text.split(","):
        match = _HOST.fullmatch(entry.strip())
        if not match:
            remedy = _named(entry) or "write host or host:ranks, with commas between"
            raise LaunchError(f"-H {text}: {entry!r} is not a host; {remedy}")
        hosts.append(Host(match.group(1), count(match.group(2) or "0", f"-H {text}")))
    seen: dict[str, str] = {}
    for name in (host.name for host in hosts):
        if first := seen.get(_machine(name)):
            same = "" if first == name else f", as {first}"
            raise LaunchError(f"-H {text}: {name} stands there twice{same}; add its ranks up, as in {first}:2")
        seen[_machine(name)] = name
    return tuple(hosts)


def count(text: str, place: str) -> int:
    """Return a number of ranks, slots or restarts, which stands at this place.

    Raises:
      LaunchError: it is too large for a launcher.
    """
    if len(text) > len(str(_MOST_RANKS)) or int(text) > _MOST_RANKS:
        raise LaunchError(f"{place}: {text} is too large a number; it takes at most {_MOST_RANKS}")
    return int(text)


def _named(entry: str) -> str:
    """Return the remedy for an IPv6 address; empty for another text."""
    # Launchers split at the first colon, and ssh knows no brackets.
    is_address = re.match(r"\[|\S*::|[^:]*:[^:]*:[^:]*:", entry)
    return "mpirun takes no IPv6 address: write a name for it, from /etc/hosts or DNS" if is_address else ""


def _machine(name: str) -> str:
    """Return a text that all known names of a machine share: those of this machine, and other spellings."""
    return "localhost" if is_here(name) else name.lower()


def read(file: str) -> tuple[Host, ...]:
    """Return the hosts of a hostfile.

    A line is a host in MPICH's form (``host:2``), in Open MPI's (``host slots=2``), or a name alone. A host may have
    several lines, whose slots are added up; a line without a number is then one slot. ``#`` begins a comment.

    Raises:
      LaunchError: the file cannot be read, has no host, or has a line of another form.
    """
    if not file:  # the path of an empty name is the current folder
        raise LaunchError("'': this hostfile's name is empty; give the path of a text file")
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LaunchError(f"{file}: this hostfile cannot be read ({reason}); give the path of a text file") from None
    found: dict[str, tuple[str, list[int]]] = {}
    for number, line in enumerate(lines, 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            host = _of_line(words, f"{file}, line {number}: {line.strip()!r}")
            found.setdefault(_machine(host.name), (host.name, []))[1].append(host.ranks)
    if not found:
        raise LaunchError(f"{file}: this hostfile has no host; write a line for each host, such as host1:2")
    return tuple(
        Host(name, slots[0] if len(slots) == 1 else sum(max(1, count) for count in slots))
        for name, slots in found.values()
    )


def read_named(variable: str, file: str) -> tuple[Host, ...]:
    """Return the hosts of a hostfile that a variable names.

    Raises:
      LaunchError: as in ``read``; the message names the variable.
    """
    try:
        return read(file)
    except LaunchError as error:
        raise LaunchError(f"{variable} names {error}, or unset {variable}") from None


def _of_line(words: Sequence[str], place: str) -> Host:
    match = _HOST.fullmatch(words[0])
    slots = match.group(2) or "0" if match else "0"
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name == "slots" and re.fullmatch(r"[1-9]\d*", value):
            slots = value
        elif name not in _WITHOUT_EFFECT:
            match = None
    if not match:
        remedy = "write host:2 or host slots=2. User and port of a host belong into ~/.ssh/config"
        raise LaunchError(f"{place} is no line of a hostfile; {_named(words[0]) or remedy}")
    return Host(match.group(1), count(slots, place))


def shared_out(ranks: int | None, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return how many of the ranks run on each host; hosts without ranks are left out.

    Slots are filled in order. A host without a number has one slot; without any number the ranks are shared equally.

    Args:
      ranks: number of ranks of the job; None for as many as there are slots.
      hosts: hosts with their slots.

    Raises:
      LaunchError: there are more ranks than slots.
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
            f"-n {left}: the hosts have room for {total} ranks only; give them more, as in {slots[0].name}:8"
        )
    filled = []
    for slot in slots:
        filled.append(Host(slot.name, min(slot.ranks, left)))
        left -= filled[-1].ranks
    return tuple(host for host in filled if host.ranks)


def is_here(name: str) -> bool:
    """Whether this is a name of this machine."""
    return name.lower() in _own_names()


@functools.cache
def _own_names() -> frozenset[str]:
    own = socket.gethostname()
    names = {*_HERE, own, own.split(".")[0], socket.getfqdn()}
    return frozenset(name.lower() for name in names)


_ANSWER_SECONDS = 30.0


def slurm_hosts(variables: Mapping[str, str]) -> tuple[tuple[Host, ...], str]:
    """Return the hosts of this process's allocation with their ranks, and the reason for these numbers.

    There are as many ranks as the job has tasks (``--ntasks``, ``--ntasks-per-node``), where ``srun`` would start them.
    Without tasks there is one rank for each GPU, or one on each host, where TensorFlow's threads take all cores.

    Args:
      variables: environment variables.

    Raises:
      LaunchError: Slurm does not give the hosts.
    """
    names = _host_names(variables.get("SLURM_JOB_NODELIST", ""))
    if "SLURM_NTASKS" in variables:
        counts, reason = counts_of_nodes(variables.get("SLURM_TASKS_PER_NODE", "")), "Slurm's tasks"
    else:
        gpus = variables.get("SLURM_GPUS_ON_NODE", "")
        each = int(gpus) if re.fullmatch(r"[1-9]\d*", gpus) else 0
        counts = [each or 1] * len(names)
        reason = "one per GPU" if each else "one per host, since the job has no --ntasks"
    if not names or len(counts) != len(names):
        raise LaunchError(
            f"Slurm's job has the hosts {','.join(names) or '(unknown)'} and ranks for {len(counts)} of them "
            f"(SLURM_TASKS_PER_NODE={variables.get('SLURM_TASKS_PER_NODE')}); write tfdist-run -H host1:2,host2:2 …"
        )
    return tuple(Host(name, count) for name, count in zip(names, counts, strict=True)), reason


def counts_of_nodes(text: str) -> list[int]:
    """Return a number for each node from Slurm's notation: ``2(x3),1`` is 2, 2, 2, 1."""
    entries = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry) for entry in text.split(",")]
    if None in entries:
        return []
    return [int(entry[1]) for entry in entries if entry for _ in range(int(entry[2] or 1))]


def _host_names(nodes: str) -> Sequence[str]:
    """Return the names of ``node[1-2,7]`` by ``scontrol``: Slurm has many notations for a list of hosts."""
    if not nodes:  # a host outside the job need not have Slurm's commands
        return ()
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{nodes}: scontrol cannot list these hosts ({error}); write tfdist-run -H …") from None
    return done.stdout.split()
