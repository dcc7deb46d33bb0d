"""Reach: runs a command on other hosts, and tells which hosts do not answer.

What else differs between hosts is the doctor's question: ``python -m tfdist -H host1,host2``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_FAILED = 255  # of ssh itself
# ssh's words for what a user must mend; the rest may pass, as while a host starts.
_LASTS = re.compile("IDENTIFICATION HAS CHANGED|Host key verification failed|Permission denied")


class Answer(NamedTuple):
    """How a command has ended on a host.

    Attributes:
      problem: why there is no answer, with the remedy; empty if there is one.
      passes: whether the problem may pass.
      code: exit code.
      output: lines of standard output.
      errors: lines of standard error.
    """

    problem: str = ""
    passes: bool = False
    code: int = 0
    output: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def ask(hosts: Sequence[str], line: str, ssh: Sequence[str], seconds: float) -> dict[str, Answer]:
    """Run a shell's command line on some hosts, on all at once.

    Args:
      hosts: names of the hosts.
      line: the command line.
      ssh: command that runs another command on a host.
      seconds: time for each answer.
    """

    def one(host: str) -> Answer:
        remedy = _remedy(host, ssh)
        command = [*ssh, *_OPTIONS, host, line]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return Answer(f"{host}: no answer in {seconds:g} s; {remedy}", passes=True)
        except OSError as error:
            return Answer(f"{host}: {ssh[0]} cannot be started ({error.strerror}); {remedy}")
        output, errors = (tuple(os.fsdecode(stream).splitlines()) for stream in (done.stdout, done.stderr.strip()))
        if done.returncode == _FAILED:
            lasting = [said.strip("@ ") for said in errors if _LASTS.search(said)]
            told = [*errors[-1:], *lasting[:1]][-1] if errors else "it said nothing"
            return Answer(f"{host}: cannot be reached ({told}); {remedy}", passes=not lasting)
        return Answer(code=done.returncode, output=output, errors=errors)

    with ThreadPoolExecutor(max_workers=min(64, max(1, len(hosts)))) as pool:
        return dict(zip(hosts, pool.map(one, hosts), strict=True))


def _remedy(host: str, ssh: Sequence[str]) -> str:
    return f"try '{shlex.join([*ssh, host])} true' by hand, or leave {host} out"


def silent(hosts: Sequence[str], ssh: Sequence[str], seconds: float) -> dict[str, Answer]:
    """Return the hosts that do not answer."""
    found = {}
    for host, answer in ask(hosts, "true", ssh, seconds).items():
        if answer.problem:
            found[host] = answer
        elif answer.code:
            told = answer.errors[-1] if answer.errors else "it said nothing"
            problem = f"{host}: runs no command (exit code {answer.code}: {told}); {_remedy(host, ssh)}"
            found[host] = Answer(problem, passes=True)
    return found
