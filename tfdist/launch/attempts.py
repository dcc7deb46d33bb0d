"""Attempts: runs a program on some hosts, once or again: checks the hosts, and makes and runs the command line."""

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
from tfdist.launch import host_check, launchers
from tfdist.launch.hosts import Host, LaunchError, is_here
from tfdist.launch.supervision import Ended, Signals, supervise

_PAUSE_SECONDS = 3.0  # between two questions to hosts that come up
_PROGRESS_SECONDS = 30.0
_SILENT_SECONDS = 5.0  # a question that takes longer is told


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
        needs = host_check.needs_of(command, python, self._handed_on, environment.variables())
        self._here = host_check.facts_here(python, needs)
        if launchers.family_of(self._here["mpi"]) == "Open MPI":
            environment.overwrite("HOME", self._home)
        self._launcher = launchers.find(self._here, python)
        # Open MPI passes addresses to its daemons: then this host's name need not resolve there.
        by_name = self._launcher.family != "Open MPI" and "HYDRA_IFACE" not in environment.variables()
        self._needs = dataclasses.replace(needs, named=by_name)
        # Hosts that are not asked are assumed to be like this one.
        self._known: dict[str, Mapping[str, Any]] = {}
        if options.verbose:
            say(f"{self._here['mpi']} ({self._here['mpi_file']}), started by {self._launcher.path}")
            say(f"here: {_described(self._here)}")

    def check(self, machines: Sequence[Host]) -> None:
        """Check the hosts of the first attempt. Wait for those that cannot be reached yet.

        Raises:
          LaunchError: a host cannot run ranks; a line for each problem.
        """
        others = [host.name for host in machines if not is_here(host.name)]
        checked = not self._options.no_check
        waits = others and self._start_seconds and not self._options.dry_run  # which starts nothing
        if self._given or not (checked or waits):
            return
        if not others:
            if problem := host_check.launcher_problem(self._here, environment.variables()):
                raise LaunchError(problem)
            return
        names_here = [host.name for host in machines if is_here(host.name) and checked]
        lines = [line for name in names_here for line in self._problems_here(name)]
        needs = dataclasses.replace(self._needs, versions=checked)
        begun, told = time.monotonic(), float("-inf")
        late, waited = others, 0.0
        while True:
            wrong = self._ask(late, needs, self._answer_seconds(waited))
            found = [problem for of_host in wrong.values() for problem in of_host]
            waited = time.monotonic() - begun
            if not found and len(late) < len(others):
                late = others  # the ways between hosts that were late and those that were not
                continue
            lasts = lines or not all(problem.passes for problem in found)
            if not found or lasts or waited >= self._start_seconds:
                break
            if waited - told >= _PROGRESS_SECONDS or len(wrong) < len(late):
                told = waited
                self._say(
                    f"waiting for {len(wrong)} of {len(others)} hosts, {self._start_seconds - waited:.0f} s at most: "
                    f"{found[0].text.partition(';')[0]}"
                )
            late = list(wrong)
            time.sleep(min(_PAUSE_SECONDS, self._start_seconds - waited))
        lines += [problem.text for problem in found]
        if lines:
            waited_for = f" (waited {waited:.0f} s)" if waited >= self._start_seconds > 0 else ""
            raise LaunchError("\ntfdist-run: ".join(lines) + waited_for)
        if told >= 0:
            self._say(f"all hosts answer after {waited:.0f} s")
        for remark in host_check.remarks_on_speed({h.name: (self._facts(h.name), h.ranks) for h in machines}):
            self._say(remark)

    def left_out(self, hosts: Sequence[str]) -> dict[str, list[str]]:
        """Check the hosts of the next attempt, and return the problems of those that cannot run ranks now."""
        if self._given:
            return {}
        others = [name for name in hosts if not is_here(name)]
        needs = dataclasses.replace(self._needs, versions=not self._options.no_check)
        wrong = self._ask(others, needs, host_check.LATER_ANSWER_SECONDS)
        return {host: [problem.text for problem in found] for host, found in wrong.items()}

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
            counted = machines or (Host("localhost", ranks),)
            cores_each, crowded, reason = binding([(self._facts(h.name), h.ranks) for h in counted])
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
        left = max(self._start_seconds - waited, host_check.LATER_ANSWER_SECONDS)
        return min(left, host_check.FIRST_ANSWER_SECONDS) if self._start_seconds else host_check.FIRST_ANSWER_SECONDS

    def _ask(
        self, others: Sequence[str], needs: host_check.Needs, seconds: float
    ) -> dict[str, list[host_check.Problem]]:
        told = f"waiting for the answers of {len(others)} hosts, {seconds:.0f} s at most"
        remark = threading.Timer(_SILENT_SECONDS, self._say, [told])
        remark.daemon = True  # an interrupted program need not wait for it
        remark.start()
        try:
            known, wrong = host_check.ask(others, self._here, needs, self._ssh or ("ssh",), seconds)
        finally:
            remark.cancel()
        if needs.versions:
            self._known |= known
            if self._options.verbose:
                for name, facts in known.items():
                    self._say(f"{name}: {_described(facts)}")
        return wrong

    def _problems_here(self, name: str) -> list[str]:
        return [problem.text for problem in host_check.problems(name, self._here, self._here, self._needs)]

    def _facts(self, name: str) -> Mapping[str, Any]:
        return self._known.get(name, self._here)


def binding(machines: Sequence[tuple[Mapping[str, Any], int]]) -> tuple[int, bool, str]:
    """Return to how many cores each rank is bound.

    Args:
      machines: facts and number of ranks of each host.

    Returns:
      The number, 0 if not bound; whether some host has more ranks than cores; the reason if not bound.
    """
    for facts, ranks in machines:
        if ranks > facts["cores"]:
            return 0, True, f"{ranks} ranks share {facts['cores']} cores"
    if not all(facts["all_cores"] for facts, _ in machines):
        # Launchers count all cores of the machine, and would use cores outside those of taskset or a container.
        return 0, False, "this process may use only some of the machine's cores"
    return min(facts["cores"] // ranks for facts, ranks in machines), False, ""


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):  # ranks may have put files there
        os.rmdir(folder)


def _described(facts: Mapping[str, Any]) -> str:
    names = ("python", "tfdist", "tensorflow", "mpi4py", "cores")
    return ", ".join(f"{name} {facts[name]}" for name in names)
