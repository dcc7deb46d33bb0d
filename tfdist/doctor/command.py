"""The doctor's command: runs the checks, alone or as a rank, and prints the report."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tfdist.core import ddl_options, system
from tfdist.core.environment import Launch, hostfile, launch, variables
from tfdist.core.settings import Settings, allowed
from tfdist.doctor import hosts, machine
from tfdist.doctor.findings import FIX, NOTE, OK, Finding
from tfdist.launch import launchers
from tfdist.launch.hosts import Host, LaunchError, parse, read_named
from tfdist.processes import devices

_TRIAL_RANKS, _TRIAL_SECONDS = 2, 120.0
_LAST_LINES = 3
_USAGE_ERROR = 2
_USAGE = """usage: python -m tfdist
       python -m tfdist -H host1,host2
       python -m tfdist trace FILE ...

Check this machine; under mpirun also the ranks together; with -H what differs between hosts, by ssh. The exit code is 1
if something is to be mended. The command trace reads what the ranks of a job did last (trace --help).
"""
_BRIEF = "--brief"  # of the trial: only what is not fine


def main(arguments: Sequence[str], loaded: Collection[str]) -> int:
    """Print the report; a line for each check.

    Collective: all ranks, if a launcher started several.

    Args:
      arguments: of the command line: none, ``--help``, or ``-H`` with names of hosts.
      loaded: names of the modules that were imported before tfdist.

    Returns:
      0 if nothing must be mended, else 1; 2 for arguments that it does not take.
    """
    started = launch()
    words = [argument for argument in arguments if argument != _BRIEF]
    first = started is None or not started.rank
    if {"-h", "--help"} & {*words}:
        print(_USAGE if first else "", end="")
        return 0
    report = _Report(_BRIEF in arguments)
    if words[:1] == [hosts.REPORT]:
        facts = machine.facts()
        print(hosts.report(words[1:], facts, list(machine.examine(facts, 1, loaded))))
        return 0
    if words[:1] in (["-H"], ["--hosts"]) and len(words) == 2 and started is None:
        try:
            report.add(hosts.examine(parse(words[1]), machine.facts()))
        except LaunchError as error:
            sys.stderr.write(f"python -m tfdist: {error}\n")
            return _USAGE_ERROR
        return int(report.broken)
    if words:
        told = f"python -m tfdist: {words[0]!r} is no command and no option; see python -m tfdist --help\n"
        sys.stderr.write(told if first else "")
        return _USAGE_ERROR
    if started is None:
        _alone(report, loaded)
    else:
        _as_rank(started, report, loaded)
    return int(report.broken)


class _Report:
    """Prints findings as they come.

    Args:
      brief: True to print only what is not fine.

    Attributes:
      brief: as given.
      broken: True if something must be mended.
    """

    def __init__(self, brief: bool) -> None:
        self.brief = brief
        self.broken = False

    def add(self, findings: Iterator[Finding] | Sequence[Finding], prints: bool = True) -> None:
        """Take findings, and print them."""
        for finding in findings:
            self.broken = self.broken or finding.state == FIX
            if prints and not (self.brief and finding.state == OK):
                print(finding, flush=True)

    def print(self, lines: Iterator[str] | Sequence[str]) -> None:
        """Print further lines, unless the report is brief."""
        if not self.brief:
            print("\n".join(["", *lines]), flush=True)


def _alone(report: _Report, loaded: Collection[str]) -> None:
    facts = machine.facts()
    report.add(machine.examine(facts, _TRIAL_RANKS, loaded))
    report.add([machine.processors(_TRIAL_RANKS, len(system.processors()))])
    settings = None if report.broken else Settings.from_environment()
    report.add(_ddl_options(settings) if settings else ())
    report.add(_trial(facts) if settings else ())
    report.print(_settings(_with_ddl_options(settings)) if settings and not report.broken else ())


def _with_ddl_options(settings: Settings) -> Settings:
    """Return the settings as ranks of this machine would have them."""
    a_gpu_each = devices.a_gpu_each(_TRIAL_RANKS)
    return ddl_options.applied(settings, settings.ddl_options, ddl_options.IMPORT, a_gpu_each)


def _ddl_options(settings: Settings) -> Iterator[Finding]:
    for remark in ddl_options.DdlOptions.parse(settings.ddl_options).remarks(size=None):
        yield Finding(NOTE, ddl_options.IMPORT, remark)


def _trial(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Start two ranks with the launcher that belongs to the MPI in use, and have them examine each other."""
    program = (sys.executable, "-m", "tfdist", _BRIEF)
    variable, file = hostfile()
    # A hostfile of the environment would send the ranks to its hosts, and this is a trial of this machine.
    here = (Host("localhost", _TRIAL_RANKS),) if file else ()
    plan = launchers.Plan(
        _TRIAL_RANKS, program, hosts=here, cores_each=0, crowded=True, prefix=False, root=os.geteuid() == 0
    )
    try:
        if problem := launchers.interface_problem(facts, variables()):
            raise LaunchError(problem)
        if file:
            read_named(variable, file)
        line = launchers.command_line(launchers.find(facts, sys.executable), plan)
    except LaunchError as error:
        yield Finding(FIX, "two ranks", str(error))
        return
    begun = time.monotonic()
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_TRIAL_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding(FIX, "two ranks", f"{error}: try mpirun -n 2 python -m tfdist")
        return
    told = [text for text in done.stdout.splitlines() if text.strip()]
    if done.returncode:
        said = [text.strip() for text in done.stderr.splitlines() if text.strip(" -")]
        ours = [text for text in said if text.startswith("tfdist")]
        last = " / ".join([*told, *(ours or said[-_LAST_LINES:])])
        yield Finding(FIX, "two ranks", f"ended with exit code {done.returncode}: {last}")
        return
    yield Finding(OK, "two ranks", f"started, and averaged right, in {time.monotonic() - begun:.0f} s")


def _as_rank(started: Launch, report: _Report, loaded: Collection[str]) -> None:
    if not started.rank and not report.brief:
        report.add(machine.examine(machine.facts(), started.local_size or started.size or 1, loaded))
    from tfdist.start import process

    job = process().job  # an error ends this rank with its own message
    world, first = job.world, job.world.rank == 0
    from tfdist.doctor import ranks

    others = world.rank != 0 and world.local_rank == 0  # rank 0 has told of its own machine already
    own = list(machine.examine(machine.facts(), world.local_size, loaded)) if others and not report.brief else []
    usable = frozenset[int]().union(*world.local_affinities(system.processors()))
    shared = [machine.processors(world.local_size, len(usable))]
    if first:
        report.add(shared)
    elif others and not report.brief:
        own += shared
    places = world.control.all_gather_object([(platform.node(), f) for f in own if f.state != OK], "the report")
    for found in places:
        report.add([Finding(f.state, f.what, f"{host}: {f.told}") for host, f in found], prints=first)
    report.add(ranks.examine(job), prints=first)
    if first:
        report.print(_settings(job.switches.settings))


def _settings(settings: Settings) -> Iterator[str]:
    yield "setting                       value      from                 meaning (allowed)"
    shown_names = Settings.documented().keys() | settings.origins.keys()
    for name, field in Settings.fields().items():
        if name not in shown_names:
            continue
        value, origin = getattr(settings, name), settings.origins.get(name, "default")
        what = f"{field.metadata['meaning']} ({allowed(field)})"
        part = field.metadata.get("part")
        shown = f"  :{part}=" if part else Settings.written(name)
        yield f"{shown:<29} {value!s:<10} {origin:<20} {what}"
