#!/usr/bin/env python3
"""``scripts/test --full``: runs the tests in every configuration, one after the other, and prints a table at the end.

A configuration that fails does not stop the others. Each run has its own folder below build/, which git ignores, with
the logs, the table and pytest's report of each test.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Three times the duration of the longest configuration on two cores. Single tests time out long before.
TIMEOUT_SECONDS = 2 * 60 * 60
PROGRESS_SECONDS = 60
# What no MPI library changes: the model, its data, and texts.
_WITHOUT_MPI = ("--ignore=tests/nmt", *(f"--ignore=tests/test_{name}.py" for name in ("plain_words", "readme")))
# Under Open MPI, hosts with two ranks and one rank cover the exchange between hosts.
_SOME_HOSTS = tuple(
    f"--deselect=tests/cluster/test_law.py::test_case[{hosts}" for hosts in ("hosts of 2 and 2", "hosts of 1, 1 and 1")
)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One row of the table.

    Attributes:
      name: name for ``--only``.
      what: description for the table.
      arguments: arguments of ``scripts/test``.
    """

    name: str
    what: str
    arguments: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of one configuration: exit code, numbers of tests, and duration."""

    code: int
    passed: int
    failed: int
    skipped: int
    minutes: float


def configurations() -> list[Configuration]:
    """Return all configurations of ``--full``. The oldest and the newest versions run together."""
    newest, open_mpi = "newest TensorFlow", ("--mpi", "openmpi")
    # What plain scripts/test leaves out: more ranks and values in each multi-rank case, and the tests marked long.
    every_case = ("--every-case", "--ignore=tests/cluster", "-k", "multirank or law or long")
    return [
        Configuration("full", f"every case, {newest}, MPICH, {_own_python()}", every_case),
        _of_python("3.10", "tensorflow-2.16.2", "TensorFlow 2.16.2, MPICH", "--tensorflow", "2.16.2"),
        _of_python("3.13", "tensorflow-2.22.0rc0", "TensorFlow 2.22.0rc0, MPICH", "--tensorflow", "2.22.0rc0"),
        _of_python("3.12", "openmpi", f"{newest}, Open MPI", *open_mpi, *_WITHOUT_MPI),
        Configuration("cluster", f"several hosts, {newest}, MPICH", ("--cluster",)),
        Configuration("cluster-openmpi", f"several hosts, {newest}, Open MPI", ("--cluster", *open_mpi, *_SOME_HOSTS)),
    ]


def _own_python() -> str:
    return "Python {}.{}".format(*sys.version_info)


def _of_python(version: str, name: str, what: str, *arguments: str) -> Configuration:
    """Return a configuration with this version of Python, or with this script's if the version is not found."""
    found = interpreter(version)
    chosen = ("--python", found) if found else ()
    return Configuration(
        name, f"{what}, {f'Python {version}' if found else _own_python()}", (*chosen, "--tests", *arguments)
    )


def interpreter(version: str) -> str:
    """Return the path of an interpreter of this version, or an empty string; a pyenv shim counts only if it runs."""
    program = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    kept = sorted(pyenv.glob(f"{version}*/bin/{program}"))
    given = os.environ.get(f"PYTHON{version.replace('.', '')}")
    for candidate in (given, shutil.which(program), *map(str, reversed(kept))):
        if candidate and _says(version, candidate):
            return candidate
    return ""


def _says(version: str, program: str) -> bool:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return said.returncode == 0 and said.stdout.startswith(f"Python {version}.")


def commit() -> str:
    """Return the short hash of the tested commit, with a note if the work tree has changes."""

    def git(*arguments: str) -> str:
        said = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return said.stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" + changes" if git("status", "--porcelain") else "")


def run(configuration: Configuration, arguments: Sequence[str], logs: Path) -> Outcome:
    """Run one configuration, and print its progress each minute."""
    report = logs / f"{configuration.name}.xml"
    log = logs / f"{configuration.name}.log"
    command = ["scripts/test", *configuration.arguments]
    start = time.monotonic()
    print(f"== {configuration.name}: {' '.join(command)} > {log}", flush=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, f"--junitxml={report}", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.monotonic() - start < TIMEOUT_SECONDS:
                try:
                    process.wait(PROGRESS_SECONDS)
                except subprocess.TimeoutExpired:
                    print(f"   {(time.monotonic() - start) / 60:3.0f} min  {_last_line(log)}", flush=True)
        finally:
            # After a timeout or an interrupt: end the configuration with all processes that it has started.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    outcome = Outcome(process.returncode, *_counts(report), minutes=(time.monotonic() - start) / 60)
    print(f"   {_last_line(log)}", flush=True)
    return outcome


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip("= ")[-110:] if lines else ""


def _counts(report: Path) -> tuple[int, int, int]:
    """Return the numbers of passed, failed and skipped tests; zeros if pytest has written no report."""
    if not report.exists():
        return 0, 0, 0
    passed = failed = skipped = 0
    for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite"):
        tests, wrong, left_out = (
            int(suite.get("tests", 0)),
            int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
            int(suite.get("skipped", 0)),
        )
        passed, failed, skipped = passed + tests - wrong - left_out, failed + wrong, skipped + left_out
    return passed, failed, skipped


def table(rows: Sequence[tuple[Configuration, Outcome]], tested: str) -> str:
    """Return the table in Markdown."""
    lines = ["| configuration | passed | failed | skipped | minutes | commit |", "|---|---|---|---|---|---|"]
    for configuration, outcome in rows:
        ended = "" if outcome.code == 0 or outcome.failed else f" (exit code {outcome.code})"
        figures = f"{outcome.passed} | {outcome.failed}{ended} | {outcome.skipped} | {outcome.minutes:.0f}"
        lines.append(f"| {configuration.what} | {figures} | {tested} |")
    return "\n".join(lines)


def main() -> int:
    """Run the chosen configurations; return 1 if any has failed, else 0."""
    everything = configurations()
    names = [configuration.name for configuration in everything]
    parser = argparse.ArgumentParser("scripts/test --full", allow_abbrev=False, description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=names, metavar=",".join(names))
    options, arguments = parser.parse_known_args()
    unknown = sorted(set(options.only) - set(names))
    if unknown:
        parser.error(f"--only {','.join(unknown)}: the configurations are {', '.join(names)}")
    logs = ROOT / "build" / "test-full" / time.strftime("%Y-%m-%d-%H%M%S")
    logs.mkdir(parents=True)
    print(f"logs: {logs}", flush=True)
    tested = commit()
    rows: list[tuple[Configuration, Outcome]] = []
    for configuration in everything:
        if configuration.name not in options.only:
            continue
        rows.append((configuration, run(configuration, arguments, logs)))
        (logs / "table.md").write_text(table(rows, tested) + "\n")
    print(table(rows, tested))
    return int(any(outcome.code for _, outcome in rows))


if __name__ == "__main__":
    sys.exit(main())
