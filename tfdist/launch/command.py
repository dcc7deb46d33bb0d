"""``tfdist-run``: start a program's ranks with the mpirun that belongs to the MPI in use.

    tfdist-run -n 4 python script.py
    tfdist-run -H host1:2,host2:2 python script.py
    tfdist-run -n 4 script.py             with tfdist imported for it
    tfdist-run -n 4 -m package.module     likewise
    tfdist-run script.py                  in a job of Slurm's: on its hosts, as many ranks as it has tasks

It is not one of the ranks, and must never start MPI itself.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from tfdist.core import environment
from tfdist.launch import hosts, restarts, script
from tfdist.launch.attempts import Attempts
from tfdist.launch.hosts import Host, LaunchError
from tfdist.launch.supervision import Ended, Signals
from tfdist.processes import devices

_USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command.

    Args:
      arguments: after its name; None for this process's.

    Returns:
      The job's exit code; 2 if it could not be started.
    """
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except LaunchError as error:
        _say(str(error))
        return _USAGE_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfdist-run",
        usage="tfdist-run [-n N] [-H host1:2,host2:2] [options] (COMMAND | script.py | -m MODULE) [arguments]",
        description="Start N ranks of a program with the mpirun that belongs to the MPI that mpi4py uses. "
        "A script.py or -m MODULE gets tfdist imported; any other command is run as it stands.",
        epilog="SIGINT, SIGTERM, SIGUSR1 and SIGHUP go on to mpirun (Open MPI's passes on SIGUSR1 alone, and ends the "
        "ranks with the others); a second SIGINT ends the job within seconds. The exit code is the job's.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n", "-np", type=_ranks, metavar="N", help="ranks (default: as many as -H or Slurm's job has; else one a GPU)"
    )
    parser.add_argument("-H", "--hosts", metavar="HOSTS", help="machines and their ranks: host1:2,host2:2")
    parser.add_argument("--no-bind", action="store_true", help="do not bind each rank to its share of the cores")
    parser.add_argument("--no-prefix", action="store_true", help="do not put the rank in front of each line")
    parser.add_argument("--no-check", action="store_true", help="do not ask the hosts for their versions first")
    parser.add_argument(
        "--max-restarts",
        type=_restarts,
        metavar="N",
        help="a failed job starts again, at most so often (default: never)",
    )
    parser.add_argument(
        "--min-ranks", type=_ranks, metavar="N", help="restarts may leave hosts out that are gone, down to N ranks"
    )
    parser.add_argument("--ssh", default="", metavar="COMMAND", help="how to reach other hosts (default: ssh)")
    parser.add_argument("--dry-run", action="store_true", help="print the command line, and end")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what was found")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="and its arguments")
    return parser


def _ranks(text: str) -> int:
    return _number(text, "ranks")


def _restarts(text: str) -> int:
    return _number(text, "restarts")


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}; it takes 1 or more")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    launched = environment.launch()
    if launched and launched.size != 1:
        raise LaunchError("mpirun or srun has started this already; start tfdist-run once, or the program without it")
    command, python = _command(options)
    machines, ranks = _machines(options)
    policy = restarts.Policy.of(options.max_restarts, ranks, options.min_ranks)
    attempts = Attempts(options, command, python, _say)
    attempts.check([host.name for host in machines])
    if options.dry_run:
        attempts.line(machines, ranks, {})
        return 0
    signals = Signals()
    # What stands in this environment is handed on, and has no place in a command line.
    named = {} if environment.variables().get("TFDIST_JOB") else {"TFDIST_JOB": uuid.uuid4().hex[:8]}

    def start(machines: tuple[Host, ...], ranks: int, restarted: int) -> Ended:
        told = {**named, "TFDIST_RESTARTS": str(restarted)} if policy.restarts else {}
        return attempts.run(attempts.line(machines, ranks, told), signals)

    room = restarts.room(hosts.parse(options.hosts) if options.hosts else machines, machines)
    return restarts.run(policy, machines, room, signals, start, attempts.left_out, _say)


def _command(options: argparse.Namespace) -> tuple[tuple[str, ...], str]:
    """What each rank runs, and the Python whose MPI it uses."""
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
    # Another program may start any Python: this one's MPI is the best guess.
    is_python = re.fullmatch(r"python[\d.]*", Path(program).name)
    return tuple(words), os.path.abspath(found) if is_python else sys.executable


def _machines(options: argparse.Namespace) -> tuple[tuple[Host, ...], int]:
    """The hosts with their ranks (none without -H), and the number of ranks."""
    if options.hosts is not None:
        machines = hosts.shared_out(options.n, hosts.parse(options.hosts))
        return machines, sum(host.ranks for host in machines)
    if options.n is not None:
        return (), options.n
    system = environment.batch_system()
    if system == "Slurm":
        machines, reason = hosts.slurm_hosts(environment.variables())
        ranks = sum(host.ranks for host in machines)
        _say(f"{ranks} rank{'s' * (ranks > 1)} on {len(machines)} of Slurm's hosts, {reason}; -n N says how many")
        return machines, ranks
    if system:
        raise LaunchError(
            "-n is missing: in a batch system's job say how many ranks there are; write tfdist-run -n 4 …"
        )
    gpus = devices.gpus_of_machine()
    _say(f"{gpus or 1} rank{'s' * (gpus > 1)}, {'one a GPU' if gpus else 'since there is no GPU'}; -n N says how many")
    return (), gpus or 1


def _say(text: str) -> None:
    sys.stderr.write(f"tfdist-run: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
