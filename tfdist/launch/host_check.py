"""Host check: whether each machine of a job has what the ranks need; all are asked at once before the start.

A machine answers with the facts that ``probe.py`` finds there. ``problems``, a pure function, compares them with this
machine's facts. A probe gets its questions on standard input: all users of a machine can read command lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tfdist.launch import launchers, probe, script
from tfdist.launch.hosts import LaunchError

FIRST_ANSWER_SECONDS = 60.0  # includes the start of Python from a cold network file system
LATER_ANSWER_SECONDS = 20.0
_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_LEFT_OUT = "or leave {host} out"
# Facts that must be the same on all machines, by the probe's names.
_SAME = {
    "python": "Python",
    "tfdist": "tfdist",
    "tensorflow": "TensorFlow",
    "numpy": "NumPy",
    "mpi4py": "mpi4py",
    "mpi": "MPI library",
}
# (pattern in ssh's output, its meaning, the remedy, whether it may pass); the first match is taken.
_SSH_SAYS = (
    (
        "IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "if the machine was installed anew: 'ssh-keygen -R {host}', then '{ssh} {host}' once by hand",
        False,
    ),
    (
        "Host key verification failed",
        "its host key is not known here",
        "log in once by hand ('{ssh} {host}') and compare the key with that machine's before you accept it",
        False,
    ),
    (
        "Could not resolve hostname",
        "this name does not resolve here",
        "correct it, or put it into /etc/hosts or DNS",
        True,
    ),
    ("Connection refused", "no ssh server listens there", "start sshd there", True),
    ("Permission denied", "it refuses this user's key", "'ssh-copy-id {host}'", False),
    (
        r"No route to host|Network is unreachable|timed out",
        "there is no way to it",
        "look whether it is on and its network is up",
        True,
    ),
)
# Any remote shell can start this sh, which runs the lines that it reads, until one of them starts Python.
_REMOTE = """exec sh -c 'while IFS= read -r line; do eval "$line"; done'"""
_SSH_FAILED = 255
_ENOUGH_MEMORY = 0.75  # smaller differences are seldom noticed
_NAMED = 3  # names of hosts in a remark
_NO_COMMAND = 127
# Variables with names of network interfaces, which libfabric, UCX, Hydra and Open MPI read.
_INTERFACES = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE", "UCX_NET_DEVICES", "HYDRA_IFACE", "OMPI_MCA_btl_tcp_if_include")


class Problem(NamedTuple):
    """A problem of a machine: a line with the remedy, and whether it may pass, as while the machine starts."""

    text: str
    passes: bool = False


@dataclasses.dataclass(frozen=True)
class Needs:
    """What the ranks of a job need on each machine.

    Attributes:
      python: Python of the ranks.
      folder: folder in which the ranks run.
      program: file of the script or the program; empty for a module.
      module: name of the module; empty for a file.
      interfaces: names of network interfaces, each with the variable that names it.
      variables: environment variables of the ranks.
      named: True if ranks on that machine find this machine by its name.
      versions: False to ask only whether the machines answer.
    """

    python: str
    folder: str
    program: str = ""
    module: str = ""
    interfaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    named: bool = True
    versions: bool = True


def needs_of(
    command: Sequence[str], python: str, variables: Mapping[str, str], environment: Mapping[str, str]
) -> Needs:
    """Return what a command needs.

    Args:
      command: the command that each rank runs.
      python: Python of the command.
      variables: environment variables that ranks on other machines get from here.
      environment: all environment variables.
    """
    is_python = command[0] == python or re.fullmatch(r"python[\d.]*", Path(command[0]).name)
    program, module = _program(command) if is_python else (shutil.which(command[0]) or command[0], "")
    return Needs(
        python,
        str(Path.cwd()),
        str(Path(program).absolute()) if program else "",
        module,
        _interfaces(_INTERFACES, environment),
        variables,
    )


def _interfaces(variables: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the names of network interfaces in variables, each with its variable."""
    named = [(variable, name) for variable in variables for name in environment.get(variable, "").split(",")]
    # Not devices or networks: mlx5_0:1 of UCX, 10.0.0.0/8 of Open MPI.
    return {name: variable for variable, name in named if re.fullmatch(r"[\w.-]+", name) and name != "all"}


def _program(command: Sequence[str]) -> tuple[str, str]:
    """Return the script's file, and the module, that a Python runs; an empty text for what it does not run."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return "", next(words, "")
        if word == "-c":
            return "", ""
        if word.endswith(".py") and word != script.FILE:  # its arguments are those of Python
            return word, ""
    return "", ""


def facts_here(python: str, needs: Needs | None = None) -> dict[str, Any]:
    """Return the facts that the probe finds with this Python on this machine.

    Raises:
      LaunchError: this Python does not run, or takes too long.
    """
    text = _probe(_questions(dataclasses.replace(needs, named=False), {}) if needs else "{}")
    answer = _ask([python, "-"], text, FIRST_ANSWER_SECONDS, next(filter(os.path.isdir, probe.FOLDERS)))
    if isinstance(answer, str):
        raise LaunchError(f"{python}: {answer}")
    code, facts, said = answer
    if facts is None:
        raise LaunchError(f"{python}: does not run here (exit code {code}: {said[-1] if said else 'it said nothing'})")
    return facts


def ask(
    hosts: Sequence[str], here: Mapping[str, Any], needs: Needs, ssh: Sequence[str], seconds: float
) -> tuple[dict[str, dict[str, Any]], dict[str, list[Problem]]]:
    """Ask other machines for their facts, all at once.

    Args:
      hosts: names of other machines.
      here: facts of this machine, which the others must equal.
      needs: what the ranks need.
      ssh: command that runs another command on a machine.
      seconds: time for each answer.

    Returns:
      The facts of machines that can run ranks, by name; and the problems of each other machine.
    """
    addresses = {host: address for host in hosts if (address := _address(host))}

    def ask_one(host: str) -> dict[str, Any] | Problem:
        if addresses.get(host, "").startswith("127."):
            return Problem(
                f"{host}: is {addresses[host]} here, which is this machine itself; correct /etc/hosts or DNS, or write "
                "localhost"
            )
        if not needs.versions:
            answer = _ask([*ssh, *_SSH_OPTIONS, host, "echo '{}'"], "", seconds)
        else:
            peers = {name: address for name, address in addresses.items() if name != host}
            text = _start_of(needs.python, needs.variables) + _probe(_questions(needs, peers))
            answer = _ask([*ssh, *_SSH_OPTIONS, host, _REMOTE], text, seconds)
        if isinstance(answer, str):
            return Problem(f"{host}: {answer}; {_by_hand(host, ssh)}", passes=True)
        code, facts, said = answer
        if facts is None or (needs.versions and not facts.keys() >= here.keys()):
            return _silence(host, code, said, needs.python, ssh)
        return facts

    with ThreadPoolExecutor(max_workers=min(64, max(1, len(hosts)))) as pool:
        answers = dict(zip(hosts, pool.map(ask_one, hosts), strict=True))
    known = {host: answer for host, answer in answers.items() if not isinstance(answer, Problem)}
    wrong = {host: [answer] for host, answer in answers.items() if isinstance(answer, Problem)}
    silent = set(wrong)
    for host, facts in known.items() if needs.versions else ():
        found = list(problems(host, facts, here, needs, silent=silent))
        if found:
            wrong[host] = found
    return {host: facts for host, facts in known.items() if host not in wrong}, {
        h: wrong[h] for h in hosts if h in wrong
    }


def problems(
    host: str, facts: Mapping[str, Any], here: Mapping[str, Any], needs: Needs, silent: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield the problems of a machine.

    Args:
      host: name of the machine.
      facts: facts that the probe has found there.
      here: facts of this machine.
      needs: what the ranks need.
      silent: machines that have not answered; a missing way to them is no problem of this machine.
    """
    if not facts["folder"]:
        yield Problem(
            f"{host}: {needs.folder} is not there; start where all machines have the same folder, or make it there"
        )
    if here["program"] and not facts["program"]:
        yield Problem(f"{host}: {needs.program} is not there; copy it, or put it into a folder that all share")
    elif facts["program"] != here["program"]:
        yield Problem(
            f"{host}: {needs.program} is not the same there as here; copy it, or put it into a folder that all share"
        )
    if here["module"] and not facts["module"]:
        yield Problem(
            f"{host}: {needs.python} finds no module {needs.module} there; install it, or set PYTHONPATH here"
        )
    different = [
        f"{shown} {facts[name] or _none(facts)} (here: {here[name]})"
        for name, shown in _SAME.items()
        if facts[name] != here[name]
    ]
    if different:
        has = ", ".join(different)
        yield Problem(f"{host}: {needs.python} has {has} there; install the same versions on all machines")
    for folder, reason in facts["full"].items():
        yield Problem(f"{host}: nothing can be written to {folder} ({reason}); delete something there")
    yield from _absent_interfaces(host, facts, needs.interfaces)
    for name, addresses in facts["names"].items():
        if not addresses:
            yield Problem(
                f"{host}: does not know the name {name}, by which its ranks are to find this machine; put it into "
                "/etc/hosts or DNS there",
                passes=True,
            )
        elif facts["network"] != here["network"] and (addresses[0].startswith("127.") or addresses[0] == "::1"):
            yield Problem(
                f"{host}: takes {name} for itself ({addresses[0]}), and its ranks would look for this machine there; "
                f"give {name} this machine's address in its /etc/hosts"
            )
    for name, reason in facts["unreachable"].items():
        if name not in silent:
            way = "look at routes and firewalls: ranks connect on any port"
            yield Problem(f"{host}: there is no way to {name} ({reason}); {way}", passes=True)


def launcher_problem(here: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return why mpirun cannot start even ranks of this machine; empty if nothing is known against it.

    Args:
      here: facts of this machine.
      environment: all environment variables.
    """
    if launchers.family_of(here["mpi"]) == "Open MPI":  # its mpirun does not read Hydra's variable
        return ""
    interfaces = _interfaces(("HYDRA_IFACE",), environment)
    return next((problem.text for problem in _absent_interfaces("localhost", here, interfaces)), "")


def _absent_interfaces(host: str, facts: Mapping[str, Any], interfaces: Mapping[str, str]) -> Iterator[Problem]:
    for name, variable in interfaces.items():
        if name not in facts["interfaces"]:
            has = ", ".join(facts["interfaces"])
            yield Problem(
                f"{host}: has no network interface {name} ({variable}), but {has}; name one that all machines have"
            )


def remarks_on_speed(machines: Mapping[str, tuple[Mapping[str, Any], int]]) -> Iterator[str]:
    """Yield differences between machines that cost speed: each step waits for the slowest rank.

    Args:
      machines: facts and number of ranks of each machine, by name.
    """
    shown = {
        "processors": {name: facts["processor"] for name, (facts, _) in machines.items()},
        "cores for each rank": {name: round(facts["cores"] / ranks, 1) for name, (facts, ranks) in machines.items()},
        "GPUs": {name: ", ".join(facts["gpus"]) or "none" for name, (facts, _) in machines.items()},
    }
    memory = {name: facts["memory_gib"] / ranks for name, (facts, ranks) in machines.items()}
    if min(memory.values()) < _ENOUGH_MEMORY * max(memory.values()):
        shown["GiB of memory for each rank"] = {name: round(gib, 1) for name, gib in memory.items()}
    for what, values in shown.items():
        groups: dict[Any, list[str]] = {}
        for name, value in values.items():
            groups.setdefault(value, []).append(name)
        if len(groups) > 1:
            told = "; ".join(f"{_some(names)}: {value}" for value, names in groups.items())
            yield f"the hosts have different {what} ({told}). Every step waits for the slowest rank"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def _none(facts: Mapping[str, Any]) -> str:
    return f"none: {facts['error']}" if facts["error"] else "none"


def _questions(needs: Needs, peers: Mapping[str, str]) -> str:
    files = {"folder": needs.folder, "program": needs.program, "module": needs.module}
    return json.dumps({**files, "hosts": [socket.gethostname()] if needs.named else [], "peers": peers})


def _silence(host: str, code: int, said: Sequence[str], python: str, ssh: Sequence[str]) -> Problem:
    """Return the problem of a machine that gave no facts."""
    text = "\n".join(said)
    last = said[-1] if said else "it said nothing"
    if code == _NO_COMMAND:
        return Problem(
            f"{host}: {python} is not there ({last}); install the same environment under this path on all machines"
        )
    if code == _SSH_FAILED:
        for pattern, what, remedy, passes in _SSH_SAYS:
            if re.search(pattern, text):
                words = {"host": host, "ssh": shlex.join(ssh)}
                remedies = f"{remedy.format(**words)}, {_LEFT_OUT.format(**words)}"
                return Problem(f"{host}: cannot be reached: {what} ({last}); {remedies}", passes)
        return Problem(f"{host}: cannot be reached ({last}); {_by_hand(host, ssh)}", passes=True)
    return Problem(f"{host}: {python} does not run there (exit code {code}: {last}); {_by_hand(host, ssh)}")


def _by_hand(host: str, ssh: Sequence[str]) -> str:
    return f"try '{shlex.join([*ssh, host])} true' by hand, {_LEFT_OUT.format(host=host)}"


def _address(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""  # ssh's configuration may have the name


def _start_of(python: str, variables: Mapping[str, str]) -> str:
    """Return the lines that set these variables and start a Python there in a folder of the probe."""
    lines = [r"newline=$(printf '\n.'); newline=${newline%.}", " || ".join(f"cd {folder}" for folder in probe.FOLDERS)]
    for name, value in variables.items():
        if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):  # a shell cannot set other names
            lines.append(f"export {name}=" + '"$newline"'.join(map(shlex.quote, value.split("\n"))))
    # A shell that goes on after a failed exec must not run the probe's lines.
    return "\n".join([*lines, f"exec {shlex.quote(python)} - || exit {_NO_COMMAND}\n"])


def _probe(questions: str) -> str:
    return f"{Path(probe.__file__).read_text()}\n\nmain({questions!r})\n"


def _ask(
    command: Sequence[str], text: str, seconds: float, folder: str | None = None
) -> tuple[int, dict[str, Any] | None, list[str]] | str:
    """Run a probe, and return its exit code, its facts and the lines of its error output; or why it has no answer.

    Args:
      command: command that starts the probe.
      text: standard input of the probe.
      seconds: time for its answer.
      folder: folder in which the command runs; None: the present one.
    """
    try:
        done = subprocess.run(command, input=os.fsencode(text), capture_output=True, timeout=seconds, cwd=folder)
    except subprocess.TimeoutExpired:
        return f"no answer in {seconds:g} s"
    except OSError as error:
        return f"{command[0]} cannot be started ({error.strerror})"
    output, said = (os.fsdecode(stream).splitlines() for stream in (done.stdout, done.stderr.strip()))
    answers: list[dict[str, Any]] = []
    for line in output if not done.returncode else ():
        with contextlib.suppress(ValueError, RecursionError):  # a login shell may print lines before and after
            answers += [json.loads(line)] if line.startswith("{") else []
    return done.returncode, max(answers, key=len, default=None), said
