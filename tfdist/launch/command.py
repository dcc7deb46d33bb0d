"""``tfdist-run``: start a program's ranks with the mpirun that belongs to the MPI in use.

    tfdist-run -n 4 python script.py
    tfdist-run -H host1:2,host2:2 python script.py
    tfdist-run --hostfile hosts.txt python script.py
    tfdist-run -n 4 script.py             with tfdist imported for it
    tfdist-run -n 4 -m package.module     the same for a module
    tfdist-run script.py                  in a Slurm job: on its hosts, as many ranks as the job has tasks

This process is no rank, and must never start MPI itself.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist.core import environment
from tfdist.launch import hosts, script
from tfdist.launch.attempts import Attempts
from tfdist.launch.hosts import Host, LaunchError, Places
from tfdist.launch.supervision import Signals
from tfdist.processes import devices

_USAGE_ERROR, _INTERRUPTED = 2, 130
_HOROVOD = str(Path(__file__).resolve().parents[1] / "horovod" / "names")
_OPERATOR_SECONDS = 600.0  # for Kubernetes to start the pods, whose images may have to be pulled


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
      arguments: arguments after the command's name; None: those of this process.

    Returns:
      The job's exit code; 2 if it could not be started.
    """
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except LaunchError as error:
        _say(str(error))
        return _USAGE_ERROR
    except KeyboardInterrupt:  # before the start; later ``Signals`` forwards it
        _say("interrupted before the start")
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfdist-run",
        usage="tfdist-run [-n N] [-H host1:2,host2:2 | --hostfile FILE] [options] "
        "(COMMAND | script.py | -m MODULE) [arguments]",
        description="Start N ranks of a program with the mpirun that belongs to the MPI that mpi4py uses. "
        "A script.py or -m MODULE gets tfdist imported; any other command is run unchanged.",
        epilog="SIGINT, SIGTERM, SIGUSR1 and SIGHUP are forwarded to mpirun. (Open MPI's mpirun forwards only SIGUSR1 "
        "to the ranks; the others end them.) A second SIGINT ends the job within seconds. The exit code is the job's.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n", "-np", type=_ranks, metavar="N", help="ranks (default: from the hosts or the Slurm job; else one per GPU)"
    )
    parser.add_argument("-H", "--hosts", metavar="HOSTS", help="hosts and their numbers of ranks: host1:2,host2:2")
    parser.add_argument(
        *("--hostfile", "-hostfile", "-f", "--machinefile", "-machinefile"),
        metavar="FILE",
        help="file with lines such as host1:2 (MPICH) or host1 slots=2 (Open MPI); default: that of Kubernetes' MPI "
        "operator",
    )
    parser.add_argument(
        "--start-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="wait so long for hosts that cannot be reached yet (default: 0; for Kubernetes' MPI operator 600)",
    )
    parser.add_argument(
        "-x",
        dest="export",
        type=_variable,
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="give the ranks this environment variable, with its value here or with VALUE",
    )
    parser.add_argument(
        "--horovod",
        action="store_true",
        help="let the program import tfdist.horovod as horovod, also where it cannot be edited",
    )
    parser.add_argument("--no-bind", action="store_true", help="do not bind each rank to its share of the cores")
    parser.add_argument("--no-prefix", action="store_true", help="do not put the rank in front of each line")
    parser.add_argument("--no-check", action="store_true", help="do not ask first whether the hosts answer")
    parser.add_argument(
        "--max-restarts",
        type=_restarts,
        metavar="N",
        help="start a failed job again, at most N times (default: never)",
    )
    parser.add_argument(
        "--min-ranks", type=_ranks, metavar="N", help="let restarts leave out hosts that are gone, down to N ranks"
    )
    parser.add_argument("--ssh", default="", metavar="COMMAND", help="command that reaches other hosts (default: ssh)")
    parser.add_argument("--dry-run", action="store_true", help="print the command line and exit")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what was found")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command and its arguments")
    return parser


def _ranks(text: str) -> int:
    return _number(text, "ranks")


def _restarts(text: str) -> int:
    return _number(text, "restarts")


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds; it takes 0 or more")
    return float(text)


def _variable(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no variable; it takes NAME or NAME=VALUE")
    if not given and name not in environment.variables():
        raise argparse.ArgumentTypeError(f"{name} is not set here; write {name}=VALUE, or leave -x {name} out")
    return name, value if given else None


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}; it takes 1 or more")
    try:
        return hosts.count(text, what)
    except LaunchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(options: argparse.Namespace) -> int:
    launched = environment.launch()
    if launched and launched.size != 1:
        raise LaunchError("mpirun or srun has started this already; start tfdist-run once, or the program without it")
    command, python = _command(options)
    if options.horovod:
        given = dict(options.export).get("PYTHONPATH") or environment.variables().get("PYTHONPATH")
        options.export.append(("PYTHONPATH", os.pathsep.join([_HOROVOD, given] if given else [_HOROVOD])))
    places = _places(options)
    attempts = Attempts(options, places, command, python, _say)
    attempts.check()
    if options.dry_run:
        attempts.line(places.machines, places.ranks)
        return 0
    return attempts.run(Signals())


def _command(options: argparse.Namespace) -> tuple[tuple[str, ...], str]:
    """Return the command of each rank, and the Python with the MPI that it uses."""
    words = [*options.command]
    if words[:1] == ["--"]:
        del words[0]
    if options.module is not None:
        if not options.module or words:
            raise LaunchError("-m: no module is named; write tfdist-run -n 4 -m package.module")
        return (sys.executable, script.FILE, "-m", *options.module), sys.executable
    if not words:
        raise LaunchError("no program given; write tfdist-run -n 4 python script.py")
    program = words[0]
    if program.endswith(".py"):
        if not Path(program).is_file():
            raise LaunchError(f"{program}: there is no such file; give the script's path")
        return (sys.executable, script.FILE, *words), sys.executable
    found = shutil.which(program)
    if found is None:
        raise LaunchError(f"{program}: there is no such command on PATH; give its path")
    # Another program may start any Python: assume the MPI of this one.
    is_python = re.fullmatch(r"python[\d.]*", Path(program).name)
    return tuple(words), os.path.abspath(found) if is_python else sys.executable


def _places(options: argparse.Namespace) -> Places:
    named, start_seconds = _named_hosts(options)
    if named:
        machines = hosts.shared_out(options.n, named)
        return Places(named, machines, sum(host.ranks for host in machines), start_seconds)
    if options.n is not None:
        return Places((), (), options.n)
    system = environment.batch_system()
    if system == "Slurm":
        machines, reason = hosts.slurm_hosts(environment.variables())
        ranks = sum(host.ranks for host in machines)
        _say(f"{ranks} rank{'s' * (ranks > 1)} on {len(machines)} of Slurm's hosts, {reason}; -n N changes this")
        return Places((), machines, ranks)
    if system:
        raise LaunchError("-n is missing: in a batch system's job give the number of ranks; write tfdist-run -n 4 …")
    gpus = devices.gpus_of_machine()
    _say(f"{gpus or 1} rank{'s' * (gpus > 1)}, {'one per GPU' if gpus else 'since there is no GPU'}; -n N changes this")
    return Places((), (), gpus or 1)


def _named_hosts(options: argparse.Namespace) -> tuple[tuple[Host, ...], float]:
    """Return the hosts that the user or the MPI operator has named, and the time for them to come up."""
    seconds = options.start_timeout or 0.0
    if options.hosts is not None and options.hostfile is not None:
        raise LaunchError(f"-H {options.hosts} and --hostfile {options.hostfile}: both name hosts; give one of them")
    if options.hosts is not None:
        return hosts.parse(options.hosts), seconds
    if options.hostfile is not None:
        return hosts.read(options.hostfile), seconds
    variable, file = environment.hostfile()
    if not file or environment.batch_system():
        return (), seconds
    found = hosts.read_named(variable, file)
    _say(f"{len(found)} host{'s' * (len(found) > 1)} from {file} ({variable})")
    waits = options.start_timeout is None and environment.in_launcher_pod()
    return found, _OPERATOR_SECONDS if waits else seconds


def _say(text: str) -> None:
    sys.stderr.write(f"tfdist-run: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
