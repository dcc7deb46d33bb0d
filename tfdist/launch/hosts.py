"""The machines of a job: which, how many ranks on each, and whether each has what the ranks need."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tfdist.launch import probe

_ANSWER_SECONDS = 60.0  # Python's start from a cold network file system included
_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_HERE = {"localhost", "127.0.0.1", "::1"}
# What must be the same everywhere, by the probe's names.
_SAME = {"python": "Python", "tfdist": "tfdist", "tensorflow": "TensorFlow", "mpi4py": "mpi4py", "mpi": "MPI library"}


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


def facts_here(python: str) -> dict[str, Any]:
    """What the probe finds with this Python on this machine.

    Raises:
      LaunchError: that Python does not run, or takes too long.
    """
    return _ask([python, "-"], python)


def check(
    hosts: Sequence[str], here: Mapping[str, Any], python: str, ssh: Sequence[str], variables: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Ask machines, all at once, what they have; a wait ends after a minute.

    Args:
      hosts: names of other machines.
      here: this machine's facts, which the others' must equal.
      python: the ranks' Python, which must be found there under the same path.
      ssh: the command that runs another on a machine.
      variables: what the ranks there will have in their environment.

    Returns:
      The facts, by name.

    Raises:
      LaunchError: some host cannot be reached, or differs.
    """
    settings = [f"{name}={value}" for name, value in variables.items()]
    remote = f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(['env', *settings, python, '-'])}"

    def ask(host: str) -> dict[str, Any] | str:
        try:
            facts = _ask([*ssh, *_SSH_OPTIONS, host, remote], host)
        except LaunchError as error:
            return f"{error}; check '{shlex.join([*ssh, host])} {python} --version', or leave {host} out of -H"
        return _difference(host, facts, here, python) or facts

    with ThreadPoolExecutor(max_workers=min(64, max(1, len(hosts)))) as pool:
        answers = list(pool.map(ask, hosts))
    problems = [answer for answer in answers if isinstance(answer, str)]
    if problems:
        raise LaunchError("\ntfdist-run: ".join(problems))
    return {host: facts for host, facts in zip(hosts, answers, strict=True) if not isinstance(facts, str)}


def _ask(command: Sequence[str], name: str) -> dict[str, Any]:
    source = Path(probe.__file__).read_text()
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{name}: no answer in {_ANSWER_SECONDS:g} s") from None
    except OSError as error:
        raise LaunchError(f"{name}: {command[0]} cannot be started ({error.strerror})") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]  # after a login shell's greeting
    if done.returncode or not answers:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise LaunchError(f"{name}: cannot be reached or has no such Python (exit code {done.returncode}: {said[-1]})")
    facts: dict[str, Any] = json.loads(answers[-1])
    return facts


def _difference(host: str, facts: Mapping[str, Any], here: Mapping[str, Any], python: str) -> str:
    different = [
        f"{shown} {facts[name] or facts['error']} (here: {here[name]})"
        for name, shown in _SAME.items()
        if facts[name] != here[name]
    ]
    if not different:
        return ""
    return f"{host}: {python} has {', '.join(different)} there; install the same versions on all machines"
