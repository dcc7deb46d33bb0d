"""Hosts: checks of the hosts of a job before its start. Each host is examined by its own doctor, through ssh."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tfdist.core.environment import variables
from tfdist.doctor.findings import FIX, NOTE, OK, Finding
from tfdist.launch import reach
from tfdist.launch.hosts import Host, is_here

REPORT = "--report"  # of one host, with its name and those of the others: as JSON
_SECONDS = 90.0
_NO_FOLDER, _NO_COMMAND = 79, 127
_PORT = 47613  # any port, as MPI chooses any; if no process listens there, the host answers all the same
_CONNECT_SECONDS = 4.0
_WAY_TO = "way to "
# Facts that must be the same on all hosts.
_SAME = {
    **{"python": "Python", "tfdist": "tfdist", "tensorflow": "TensorFlow", "numpy": "NumPy", "mpi4py": "mpi4py"},
    "mpi": "MPI library",
}
# Variables with names of network interfaces, which libfabric, UCX, Hydra and Open MPI read.
_INTERFACES = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE", "UCX_NET_DEVICES", "HYDRA_IFACE", "OMPI_MCA_btl_tcp_if_include")


def examine(hosts: Sequence[Host], here: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings on some hosts.

    Args:
      hosts: the hosts.
      here: facts of this host, which the others must equal.
    """
    if "python" not in here:
        yield Finding(FIX, "MPI", str(here["error"]))
        return
    names = [host.name for host in hosts]
    every = list(dict.fromkeys([socket.gethostname(), *names]))
    set_path = f"PYTHONPATH={shlex.quote(variables()['PYTHONPATH'])} " if "PYTHONPATH" in variables() else ""
    for name in names:
        if is_here(name):
            yield from _compared(name, here, here)
    others = [name for name in names if not is_here(name)]
    begin = f"cd {shlex.quote(os.getcwd())} || exit {_NO_FOLDER}; {set_path}exec {shlex.quote(sys.executable)}"
    line = f"{begin} -m tfdist {REPORT} {' '.join(every)}"
    answers = reach.ask(others, line, ("ssh",), _SECONDS)
    silent = [_WAY_TO + name for name, answer in answers.items() if answer.problem]
    for name, answer in answers.items():
        yield from _of_answer(name, answer, here, silent)


def _of_answer(name: str, answer: reach.Answer, here: Mapping[str, Any], ignored: Sequence[str]) -> Iterator[Finding]:
    told = [line for line in answer.output if line.startswith('{"facts"')]
    last = answer.errors[-1] if answer.errors else "it said nothing"
    if answer.problem:
        yield Finding(FIX, name, answer.problem)
    elif answer.code == _NO_FOLDER:
        yield Finding(FIX, name, f"{os.getcwd()} is not there: start where all hosts have the same folder, or make it")
    elif answer.code == _NO_COMMAND:
        yield Finding(
            FIX, name, f"{sys.executable} is not there: install the same environment under this path ({last})"
        )
    elif not told:
        yield Finding(FIX, name, f"its doctor does not run (exit code {answer.code}: {last}): install tfdist there")
    else:
        report = json.loads(told[-1])
        yield from _compared(name, report["facts"], here)
        for state, what, said in report["findings"]:
            if state != OK and what not in ignored:  # a host that is down is no problem of another one
                yield Finding(state, name, f"{what}: {said}")


def _compared(name: str, facts: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Finding]:
    if "python" not in facts:
        yield Finding(FIX, name, str(facts["error"]))
        return
    different = [
        f"{shown} {facts[key] or 'none'} (here: {here[key]})" for key, shown in _SAME.items() if facts[key] != here[key]
    ]
    if different:
        yield Finding(FIX, name, f"it has {', '.join(different)}: install the same versions on all hosts")
    for variable in _INTERFACES:
        for interface in variables().get(variable, "").split(","):
            # Not devices or networks: mlx5_0:1 of UCX, 10.0.0.0/8 of Open MPI.
            if re.fullmatch(r"[\w.-]+", interface) and interface not in {*facts["interfaces"], "all"}:
                has = ", ".join(facts["interfaces"])
                told = f"it has no network interface {interface} ({variable}), but {has}: name one that all hosts have"
                yield Finding(FIX, name, told)
    if facts["cores"] != here["cores"]:
        slow = f"it has {facts['cores']} cores (here: {here['cores']}): every step waits for the slowest rank"
        yield Finding(NOTE, name, slow)
    if not different:
        yield Finding(OK, name, "answers, and has the same versions")


def ways(names: Sequence[str]) -> list[Finding]:
    """Return the problems of this host with the names of others, and with the ways to them."""
    others = [name for name in names if not is_here(name)]
    with ThreadPoolExecutor(min(64, max(1, len(others)))) as pool:
        told = pool.map(_way, others)
    return [Finding(FIX, _WAY_TO + name, words) for name, words in zip(others, told, strict=True) if words]


def _way(name: str) -> str:
    """Return why ranks here would not find those of a host; empty if they would."""
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return "the name is not known there: put it into /etc/hosts or DNS"
    if address.startswith("127.") or address == "::1":
        return f"the host takes {name} for itself ({address}): give {name} its own address in /etc/hosts there"
    try:
        socket.create_connection((address, _PORT), _CONNECT_SECONDS).close()
    except (ConnectionRefusedError, ConnectionResetError):
        pass
    except OSError as error:
        why = error.strerror or error
        return f"there is none ({address}: {why}): look at routes and firewalls. Ranks connect on any port"
    return ""


def report(names: Sequence[str], facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Return this host's report for ``examine``.

    Args:
      names: names of all hosts.
      facts: facts of this host.
      findings: findings on this host.
    """
    every = [*findings, *ways(names)]
    return json.dumps({"facts": facts, "findings": [(f.state, f.what, f.told) for f in every]})
