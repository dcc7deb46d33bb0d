"""Attempts: runs a program on some hosts, once or again: asks the hosts, and makes and runs the command line."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import os
import pwd
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.core import environment, system
from tfdist.launch import launchers, reach
from tfdist.launch.hosts import Host, LaunchError, is_here
from tfdist.launch.supervision import Ended, Signals, supervise

_PAUSE_SECONDS = 3.0  # between two questions to hosts that come up
_PROGRESS_SECONDS = 30.0
_SILENT_SECONDS = 5.0  # a question that takes longer is told
_FIRST_ANSWER_SECONDS, _LATER_ANSWER_SECONDS = 60.0, 20.0


class Attempts:
    """Starts a program.

    Args:
      options: options of the command line.
      named: True if the user, not a batch system, has named the hosts.
      start_seconds: time for hosts to come up, while they cannot be reached.
      command: the command that each rank runs.
      python: Python of the ranks.
      say: function that logs a line.

    Raises:
      LaunchError: there is no MPI, or no launcher for it.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        named: bool,
        start_seconds: float,
        command: tuple[str, ...],
        python: str,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._start_seconds = start_seconds
        self._command = command
        self._say = say
        try:
            self._ssh = tuple(shlex.split(options.ssh))
        except ValueError as error:  # a quotation mark without its end
            raise LaunchError(
                f"--ssh {options.ssh}: {error}; write a command that a shell can read, as in --ssh 'ssh -p 22'"
            ) from None
        # The value of -x NAME must not stand in a command line or a log. Launchers take it from the environment.
        exported: dict[str, str | None] = dict(options.export)
        self._set = {name: value for name, value in exported.items() if value is not None}
        self._from_here = tuple(name for name, value in exported.items() if value is None)
        values = {name: environment.variables()[name] for name in self._from_here}
        self._handed_on = environment.exported_variables() | values | self._set
        self._system = environment.batch_system()
        # A batch system's hosts need not be open to ssh, and it assigns the cores itself.
        self._given = bool(self._system) and not named
        self._here = launchers.facts_here(python)
        if launchers.family_of(self._here["mpi"]) == "Open MPI":
            environment.overwrite("HOME", self._home)
        self._launcher = launchers.find(self._here, python)
        if options.verbose:
            say(f"{self._here['mpi']} ({self._here['mpi_file']}), started by {self._launcher.path}")
            names = ("python", "tensorflow", "mpi4py", "cores")
            say(f"here: {', '.join(f'{name} {self._here[name]}' for name in names)}")

    def check(self, machines: Sequence[Host]) -> None:
        """Ask whether the hosts of the first attempt answer. Wait for those that cannot be reached yet.

        Raises:
          LaunchError: a host does not answer; a line for each.
        """
        others = [host.name for host in machines if not is_here(host.name)]
        waits = self._start_seconds and not self._options.dry_run  # which starts nothing
        if self._given or (self._options.no_check and not (others and waits)):
            return
        if not others:
            if problem := launchers.interface_problem(self._here, environment.variables()):
                raise LaunchError(problem)
            return
        begun, told = time.monotonic(), 0.0
        late = self._ask(others, self._answer_seconds(0.0))
        while late:
            waited = time.monotonic() - begun
            if waited >= self._start_seconds or not all(answer.passes for answer in late.values()):
                waited_for = f" (waited {waited:.0f} s)" if waited >= self._start_seconds > 0 else ""
                raise LaunchError("\ntfdist-run: ".join(answer.problem for answer in late.values()) + waited_for)
            if waited >= told:
                told = waited + _PROGRESS_SECONDS
                first = next(iter(late.values())).problem.partition(";")[0]
                left = self._start_seconds - waited
                self._say(f"waiting for {len(late)} of {len(others)} hosts, {left:.0f} s at most: {first}")
            time.sleep(min(_PAUSE_SECONDS, self._start_seconds - waited))
            late = self._ask(list(late), self._answer_seconds(waited))
        if told:
            self._say(f"all hosts answer after {time.monotonic() - begun:.0f} s")

    def left_out(self, hosts: Sequence[str]) -> dict[str, list[str]]:
        """Return the hosts that do not answer before the next attempt, with the reasons."""
        others = [] if self._given else [name for name in hosts if not is_here(name)]
        return {host: [answer.problem] for host, answer in self._ask(others, _LATER_ANSWER_SECONDS).items()}

    def line(self, machines: tuple[Host, ...], ranks: int, variables: Mapping[str, str]) -> list[str]:
        """Return the launcher's command line, and log it.

        Args:
          machines: hosts with their ranks; empty for this host, or for the batch system's allocation.
          ranks: number of all ranks.
          variables: environment variables for the ranks, in addition to the defaults.

        Raises:
          LaunchError: this launcher cannot start such a job.
        """
        others = [host.name for host in machines if not is_here(host.name)]
        if self._given:
            cores_each, crowded, reason = None, False, f"{self._system} shares the cores out"
        else:
            # Hosts are taken to be like this one.
            most = max((host.ranks for host in machines), default=ranks)
            cores_each, crowded, reason = binding(self._here, most)
        if self._options.no_bind:
            cores_each, reason = 0, ""
        plan = launchers.Plan(
            ranks,
            self._command,
            hosts=machines,
            cores_each=cores_each,
            crowded=crowded,
            # Its marks tell Open MPI's own lines from those of ranks.
            prefix=not self._options.no_prefix or self._launcher.family == "Open MPI",
            variables={**environment.rank_defaults(), **variables, **self._set},
            exported_variables=tuple(n for n in self._handed_on if n not in self._set)
            if others or self._system
            else self._from_here,
            ssh=launchers.keep_alive(self._launcher, self._ssh) if others else self._ssh,
            root=os.geteuid() == 0,
        )
        line = launchers.command_line(self._launcher, plan)
        if reason:
            self._say(f"ranks are not bound to cores: {reason}")
        hidden = {name: "..." for name in self._set if not self._options.dry_run}  # logs have other readers
        told = dataclasses.replace(plan, variables={**plan.variables, **hidden})
        self._say(shlex.join(launchers.command_line(self._launcher, told)))
        return line

    def run(self, line: Sequence[str], signals: Signals, machines: int = 0) -> Ended:
        """Run a command line until the launcher ends.

        Args:
          line: the launcher's command line.
          signals: signals that are forwarded to the launcher.
          machines: number of hosts with ranks; 0: unknown.

        Raises:
          LaunchError: the launcher cannot be started.
        """
        marked = launchers.marked_lines(self._launcher, not self._options.no_prefix)
        try:
            return supervise(line, signals, marked, self._launcher.family == "Open MPI", machines)
        except OSError as error:
            raise LaunchError(f"{self._launcher.path}: cannot be started ({error.strerror})") from None

    def _home(self, given: str | None) -> str | None:
        """Return another folder than HOME, where Open MPI runs files that it finds; None to keep HOME."""
        if given and system.only_ours(given):
            return None
        folder = ""
        with contextlib.suppress(KeyError):  # a container may run with a number that is no user's
            folder = pwd.getpwuid(os.geteuid()).pw_dir
        if not system.only_ours(folder):
            folder = tempfile.mkdtemp(prefix="tfdist-home-")
            atexit.register(_remove_if_empty, folder)
        if given:
            self._say(
                f"HOME={given} is no folder of yours alone, and Open MPI runs files there; it and the ranks get "
                f"HOME={folder}"
            )
        return folder

    def _answer_seconds(self, waited: float) -> float:
        """Return the time for an answer: no longer than the hosts have for coming up, but enough for one that is up."""
        left = max(self._start_seconds - waited, _LATER_ANSWER_SECONDS)
        return min(left, _FIRST_ANSWER_SECONDS) if self._start_seconds else _FIRST_ANSWER_SECONDS

    def _ask(self, others: Sequence[str], seconds: float) -> dict[str, reach.Answer]:
        """Return the hosts that do not answer."""
        told = f"waiting for the answers of {len(others)} hosts, {seconds:.0f} s at most"
        remark = threading.Timer(_SILENT_SECONDS, self._say, [told])
        remark.daemon = True  # an interrupted program need not wait for it
        remark.start()
        try:
            return reach.silent(others, self._ssh or ("ssh",), seconds)
        finally:
            remark.cancel()


def binding(facts: Mapping[str, Any], ranks: int) -> tuple[int, bool, str]:
    """Return to how many cores each rank is bound.

    Args:
      facts: facts of a host, from the probe.
      ranks: largest number of ranks of a host.

    Returns:
      The number, 0 if not bound; whether the host has more ranks than cores; the reason if not bound.
    """
    if ranks > facts["cores"]:
        return 0, True, f"{ranks} ranks share {facts['cores']} cores"
    if not facts["all_cores"]:
        # Launchers count all cores of the machine, and would use cores outside those of taskset or a container.
        return 0, False, "this process may use only some of the machine's cores"
    return facts["cores"] // ranks, False, ""


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):  # ranks may have put files there
        os.rmdir(folder)
