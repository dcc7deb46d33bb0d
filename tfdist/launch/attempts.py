"""Attempts: runs a program on its hosts, and runs it again while it fails and the options allow this.

An attempt goes on from the last checkpoint if the program writes any. The number of ranks is fixed while a job runs;
between two attempts it may change. The program must handle this itself.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import itertools
import os
import pwd
import shlex
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.core import environment, system
from tfdist.launch import launchers, reach
from tfdist.launch.hosts import Host, LaunchError, Places, is_here
from tfdist.launch.supervision import Ended, Signals, supervise

_PAUSE_SECONDS = 3.0  # between two questions to hosts that come up; for an attempt to release ports, locks and memory
_PROGRESS_SECONDS = 30.0
_SILENT_SECONDS = 5.0  # a question that takes longer is told
_FIRST_ANSWER_SECONDS, _LATER_ANSWER_SECONDS = 60.0, 20.0


class Attempts:
    """Starts a program.

    Args:
      options: options of the command line.
      places: hosts of the job, and its number of ranks.
      command: the command that each rank runs.
      python: Python of the ranks.
      say: function that logs a line.

    Raises:
      LaunchError: there is no MPI, or no launcher for it; or ``--min-ranks`` is given without ``--max-restarts``, or
        exceeds the ranks.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        places: Places,
        command: tuple[str, ...],
        python: str,
        say: Callable[[str], None],
    ) -> None:
        most, least = places.ranks, options.min_ranks
        if least is not None and options.max_restarts is None:
            raise LaunchError(f"--min-ranks {least}: has an effect with --max-restarts only; add --max-restarts 3")
        if least is not None and least > most:
            raise LaunchError(f"--min-ranks {least}: the job begins with {most} ranks; give at most {most}")
        self._options, self._places, self._command, self._say = options, places, command, say
        self._restarts, self._least = options.max_restarts or 0, most if least is None else least
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
        # A variable of this environment is passed on anyway, and does not belong in the command line.
        self._job = {} if environment.variables().get("TFDIST_JOB") else {"TFDIST_JOB": uuid.uuid4().hex[:8]}
        self._system = environment.batch_system()
        # A batch system's hosts need not be open to ssh, and it assigns the cores itself.
        self._given = bool(self._system) and not places.named
        self._here = launchers.facts_here(python)
        if launchers.family_of(self._here["mpi"]) == "Open MPI":
            environment.overwrite("HOME", self._home)
        self._launcher = launchers.find(self._here, python)
        if options.verbose:
            say(f"{self._here['mpi']} ({self._here['mpi_file']}), started by {self._launcher.path}")
            names = ("python", "tensorflow", "mpi4py", "cores")
            say(f"here: {', '.join(f'{name} {self._here[name]}' for name in names)}")

    def check(self) -> None:
        """Ask whether the hosts of the first attempt answer. Wait for those that cannot be reached yet.

        Raises:
          LaunchError: a host does not answer; a line for each.
        """
        patience = self._places.start_seconds
        others = [host.name for host in self._places.machines if not is_here(host.name)]
        waits = patience and not self._options.dry_run  # which starts nothing
        if self._given or (self._options.no_check and not (others and waits)):
            return
        if not others:
            if problem := launchers.interface_problem(self._here, environment.variables()):
                raise LaunchError(problem)
            return
        begun, told = time.monotonic(), 0.0
        # An answer gets no longer than the hosts have for coming up, but enough time if its host is up.
        least = _LATER_ANSWER_SECONDS if patience else _FIRST_ANSWER_SECONDS
        late = self._ask(others, min(max(patience, least), _FIRST_ANSWER_SECONDS))
        while late:
            waited = time.monotonic() - begun
            left = patience - waited
            if left <= 0 or not all(answer.passes for answer in late.values()):
                waited_for = f" (waited {waited:.0f} s)" if left <= 0 < patience else ""
                raise LaunchError("\ntfdist-run: ".join(answer.problem for answer in late.values()) + waited_for)
            if waited >= told:
                told = waited + _PROGRESS_SECONDS
                first = next(iter(late.values())).problem.partition(";")[0]
                self._say(f"waiting for {len(late)} of {len(others)} hosts, {left:.0f} s at most: {first}")
            time.sleep(min(_PAUSE_SECONDS, left))
            late = self._ask(list(late), min(max(left, least), _FIRST_ANSWER_SECONDS))
        if told:
            self._say(f"all hosts answer after {time.monotonic() - begun:.0f} s")

    def run(self, signals: Signals) -> int:
        """Run the job, and run it again while it fails and may start again.

        Args:
          signals: signals to this process; after a signal that is to end the job there are no more attempts.

        Returns:
          The exit code of the last attempt.

        Raises:
          LaunchError: the launcher cannot be started.
        """
        machines, ranks, attempts = self._places.machines, self._places.ranks, self._restarts + 1
        for attempt in itertools.count(1):
            ended = self._attempt(machines, ranks, attempt - 1, signals)
            if self._restarts and (ended.code or attempt > 1):
                self._say(
                    f"attempt {attempt} of {attempts} ended with exit code {ended.code} after {ended.seconds:.0f} s"
                )
            if not ended.code or attempt == attempts:
                break
            signals.wait(_PAUSE_SECONDS)
            if machines and signals.ending is None:
                silent = self._silent()
                for problem in silent.values():
                    self._say(problem)
                machines = self._places.on_remaining(silent)
                ranks = sum(host.ranks for host in machines)
            if signals.ending is not None:
                self._say(f"{signals.ending.name} was to end the job: it does not start again")
                break
            if ranks < self._least:
                self._say(
                    f"the hosts that are left have room for {ranks} of {self._places.ranks} ranks, and --min-ranks is "
                    f"{self._least}: the job does not start again"
                )
                break
            on = f" on {','.join(f'{host.name}:{host.ranks}' for host in machines)}" if machines else ""
            fewer = f" instead of {self._places.ranks}" if ranks < self._places.ranks else ""
            self._say(f"attempt {attempt + 1} of {attempts}: {ranks} rank{'s' * (ranks > 1)}{fewer}{on}")
        return ended.code

    def _silent(self) -> dict[str, str]:
        """Return the hosts that do not answer before the next attempt, with the reasons."""
        hosts = () if self._given else self._places.named or self._places.machines
        others = [host.name for host in hosts if not is_here(host.name)]
        return {host: answer.problem for host, answer in self._ask(others, _LATER_ANSWER_SECONDS).items()}

    def _attempt(self, machines: tuple[Host, ...], ranks: int, restarted: int, signals: Signals) -> Ended:
        told = {**self._job, "TFDIST_RESTARTS": str(restarted)} if self._restarts else {}
        line = self.line(machines, ranks, **told)
        marked = launchers.marked_lines(self._launcher, not self._options.no_prefix)
        try:
            return supervise(line, signals, marked, self._launcher.family == "Open MPI", len(machines))
        except OSError as error:
            raise LaunchError(f"{self._launcher.path}: cannot be started ({error.strerror})") from None

    def line(self, machines: tuple[Host, ...], ranks: int, **variables: str) -> list[str]:
        """Return the launcher's command line, and log it.

        Args:
          machines: hosts with their ranks; empty for this host, or for the batch system's allocation.
          ranks: number of all ranks.
          **variables: environment variables for the ranks, in addition to the defaults.

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
