"""Launchers: finds the mpirun of the MPI that mpi4py uses, and makes the arguments for each kind of mpirun.

``command_line`` is a pure function.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.core import environment
from tfdist.launch import probe
from tfdist.launch._rank_prefix import Lines, See
from tfdist.launch.hosts import Host, LaunchError

_VERSION_SECONDS = 20.0
_PROBE_SECONDS = 60.0  # includes the start of Python from a cold network file system
# Words in the output of MPI_Get_library_version, and of launchers with --version. MVAPICH uses MPICH's launcher.
_FAMILIES = {
    "Open MPI": ("Open MPI", "OpenRTE"),
    "MPICH": ("MPICH", "MVAPICH", "HYDRA"),
}
# Debian's names come before "mpirun", which there belongs to the MPI that the administrator has chosen.
_NAMES = {
    "Open MPI": ("mpirun.openmpi", "mpirun", "mpiexec"),
    "MPICH": ("mpiexec.hydra", "mpirun.mpich", "mpirun", "mpiexec"),
}
_LIB = ("lib", "lib64", "lib32")
_KEEP_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_INTEL = "Intel(R) MPI"
_WITHOUT_LAUNCHER = "CRAY"  # an MPICH that only the batch system starts


# Open MPI 5's mpirun prints this line when it cannot reach one of its daemons any more. It ends the job, and exits
# with 0.
LOST_DAEMON = b"PRTE has lost communication with a remote daemon.\n"
# A rank prints this when it calls MPI_Abort. mpirun may then wait for a stopped rank on another machine.
ABORTED = b"MPI_ABORT was invoked on rank"
# mpirun prints this when it has ended the job. It may then wait for a machine that does not answer.
EXITED = (b"prterun has exited due to process rank", b"mpirun has exited due to process rank")


@dataclasses.dataclass(frozen=True)
class Launcher:
    """An mpirun.

    Attributes:
      path: path of the program.
      family: ``MPICH`` or ``Open MPI``.
      major: first number of its version; 0 if unknown.
    """

    path: str
    family: str
    major: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The parts of a job that a launcher needs.

    Attributes:
      ranks: number of ranks of the whole job.
      command: the command that each rank runs.
      hosts: hosts with their ranks; empty: this machine, or the batch system's allocation.
      cores_each: number of cores to which each rank is bound; 0: not bound; None: left to the launcher.
      crowded: True if some host has more ranks than cores.
      prefix: True to put the rank in front of each line.
      variables: environment variables to set for the ranks.
      exported_variables: names of environment variables that ranks on other machines must get from here.
      ssh: the user's command for reaching other machines; empty: the launcher's.
      root: True for the superuser, whom Open MPI allows only with an option.
    """

    ranks: int
    command: tuple[str, ...]
    hosts: tuple[Host, ...] = ()
    cores_each: int | None = None
    crowded: bool = False
    prefix: bool = True
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exported_variables: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ()
    root: bool = False


def family_of(version: str) -> str:
    """Return the family of a library or launcher from its version text; empty if unknown."""
    if _INTEL in version:  # its launcher names Hydra, too
        return ""
    return next((family for family, words in _FAMILIES.items() if any(word in version for word in words)), "")


def facts_here(python: str) -> dict[str, Any]:
    """Return the facts that the probe finds with this Python on this machine.

    Raises:
      LaunchError: this Python does not run, or takes too long.
    """
    folder = next(filter(os.path.isdir, probe.FOLDERS))
    try:
        done = subprocess.run(
            [python, "-"],
            input=Path(probe.__file__).read_text(),
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{python}: no answer in {_PROBE_SECONDS:g} s") from None
    except OSError as error:
        raise LaunchError(f"{python}: cannot be started ({error.strerror})") from None
    for line in reversed(done.stdout.splitlines() if not done.returncode else ()):
        with contextlib.suppress(ValueError):  # startup files of Python may print lines, too
            found = json.loads(line)
            if isinstance(found, dict) and "mpi_file" in found:
                return found
    said = done.stderr.strip().splitlines()
    raise LaunchError(f"{python}: does not run here (exit code {done.returncode}: {(said or ['it said nothing'])[-1]})")


def interface_problem(facts: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """Return why Hydra cannot start even ranks of this machine: its variable names no interface; empty if it can."""
    name = variables.get("HYDRA_IFACE", "")
    if not name or name in facts["interfaces"] or family_of(facts["mpi"]) != "MPICH":
        return ""
    has = ", ".join(facts["interfaces"])
    return f"localhost: has no network interface {name} (HYDRA_IFACE), but {has}; name one that all machines have"


def find(facts: Mapping[str, Any], python: str) -> Launcher:
    """Return the launcher that belongs to the MPI in use.

    Args:
      facts: facts of this machine, from the probe.
      python: Python that ran the probe, for messages.

    Raises:
      LaunchError: there is no MPI, or no launcher for it.
    """
    library = facts["mpi"]
    if not library:
        raise LaunchError(
            f"{python}: mpi4py finds no MPI there ({facts['error']}); pip install mpich, or load the machine's MPI"
        )
    family = family_of(library)
    if not family or _WITHOUT_LAUNCHER in library:
        raise LaunchError(
            f"{library}: no mpirun of this MPI is known; start with the site's own: srun -n 4 python script.py"
        )
    seen = []
    for path in _candidates(family, facts["mpi_file"], facts["prefix"]):
        version = _version(path)
        launcher = Launcher(path, family_of(version), _major(version))
        # Open MPI 4 and 5 have different runtimes: neither starts the other's ranks.
        same = family != "Open MPI" or not launcher.major or launcher.major == _major(library)
        if launcher.family == family and same:
            return launcher
        seen.append(f"{path} is of {' '.join(version.split())[:40] or 'an unknown MPI'}")
    others = f" ({'; '.join(seen)})" if seen else ""
    raise LaunchError(
        f"{library}: mpi4py uses this MPI, but no mpirun of it is near {facts['mpi_file'] or 'it'}, in "
        f"{facts['prefix']}/bin or on PATH{others}; put its bin first on PATH"
    )


def _candidates(family: str, library: str, prefix: str) -> Iterator[str]:
    directories = [Path(prefix, "bin")]
    # lib/libmpi.so, lib/release/libmpi.so, lib/x86_64-linux-gnu/libmpich.so
    directories = [folder.parent / "bin" for folder in Path(library).parents if folder.name in _LIB][:1] + directories
    for directory in dict.fromkeys(map(str, directories)):
        found = (shutil.which(name, path=directory) for name in _NAMES[family])
        yield from filter(None, found)
    yield from filter(None, map(shutil.which, _NAMES[family]))


def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _major(version: str) -> int:
    match = re.search(r"(\d+)\.\d+", version)
    return int(match.group(1)) if match else 0


def keep_alive(launcher: Launcher, ssh: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command for reaching other machines. It ends when a machine is gone, as mpirun waits for it.

    Args:
      launcher: the launcher; Hydra takes arguments of ``ssh`` only from the environment.
      ssh: the user's own command, which stays unchanged.
    """
    # Batch systems have commands of their own, to which Hydra would pass these arguments.
    if ssh or environment.batch_system() or environment.variables().get("HYDRA_LAUNCHER", "ssh") != "ssh":
        return ssh
    if launcher.family == "Open MPI":
        return ("ssh", *_KEEP_ALIVE)
    environment.set_default("HYDRA_LAUNCHER_EXTRA_ARGS", " ".join(_KEEP_ALIVE))
    return ()


def command_line(launcher: Launcher, plan: Plan) -> list[str]:
    """Return the launcher with its arguments.

    Raises:
      LaunchError: this launcher cannot start such a job.
    """
    arguments = {"MPICH": _mpich, "Open MPI": _open_mpi}[launcher.family]
    return [launcher.path, "-n", str(plan.ranks), *arguments(launcher, plan), *plan.command]


def marked_lines(launcher: Launcher, named: bool) -> Callable[[See], Lines] | None:
    """Return what makes a stream's ``Lines`` from the marks that ``command_line`` asks for; None if not needed."""
    if launcher.family == "MPICH" and named:
        return lambda see: Lines(re.compile(rb"<rank (\d+)>"), b"<", see=see)
    if launcher.family == "Open MPI":
        tag = rb"\[(\d+)\]<std\w+>: ?" if launcher.major >= 5 else rb"\[\d+,(\d+)\]<std\w+>:"
        return lambda see: Lines(re.compile(tag), b"[", named, see)
    return None


def _mpich(launcher: Launcher, plan: Plan) -> Iterator[str]:
    if plan.hosts:
        yield from ("-hosts", ",".join(f"{host.name}:{host.ranks}" for host in plan.hosts))
    if plan.cores_each:
        yield from ("-bind-to", f"core:{plan.cores_each}", "-map-by", f"core:{plan.cores_each}")
    elif plan.cores_each == 0:
        yield from ("-bind-to", "none")
    if plan.prefix:
        yield from ("-prepend-pattern", "<rank %r>")  # not -prepend-rank: see Lines
    if plan.ssh and plan.hosts:
        if len(plan.ssh) > 1:
            raise LaunchError(
                f"--ssh {' '.join(map(repr, plan.ssh))}: this mpirun takes a program without arguments; "
                "write a script of one line, or an entry in ~/.ssh/config"
            )
        yield from ("-launcher", "ssh", "-launcher-exec", *plan.ssh)
    for name, value in plan.variables.items():
        yield from ("-genv", name, value)


def _open_mpi(launcher: Launcher, plan: Plan) -> Iterator[str]:
    prrte = launcher.major >= 5
    if plan.root:
        yield "--allow-run-as-root"
    if plan.hosts:
        yield from ("--host", ",".join(f"{host.name}:{host.ranks}" for host in plan.hosts))
    if plan.cores_each:
        yield from ("--map-by", f"slot:PE={plan.cores_each}", "--bind-to", "core")
    elif plan.cores_each == 0:
        yield from ("--map-by", "slot:OVERSUBSCRIBE") if plan.crowded else ()
        yield from ("--bind-to", "none")
    elif plan.hosts:  # PRTE_MCA_rmaps_default_mapping_policy may put all ranks on the first
        yield from ("--map-by", "slot")
    if plan.prefix:
        yield from ("--output", "rank") if prrte else ("--tag-output",)
    if plan.ssh and plan.hosts:
        if any(" " in word for word in plan.ssh):
            raise LaunchError(
                f"--ssh {shlex.join(plan.ssh)}: this mpirun splits it at each space; write a script of one line"
            )
        agent: Sequence[str] = ("--prtemca", "plm_ssh_agent") if prrte else ("--mca", "plm_rsh_agent")
        yield from (*agent, " ".join(plan.ssh))
    for name in plan.exported_variables:
        yield from ("-x", name)
    for name, value in plan.variables.items():
        yield from ("-x", f"{name}={value}")
