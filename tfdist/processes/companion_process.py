"""Companion process: a program that watches one rank, and reports what the rank cannot report itself.

    python -I -S companion_process.py RANK SIZE PID CONNECTION SECONDS

It imports nothing of the package, so that it starts at once and stays small. The rank tells it on standard input when
all ranks have begun, and when the rank has come to its end. See ``companion``.

**Until all ranks have begun** no Python thread of the rank can run. A rank may have ended before MPI began, and others
wait for it in MPI for ever. Hydra, MPICH's launcher, ends a job if a rank ends without ``MPI_Finalize``. But it takes a
rank that has never begun MPI for a program without it. Other processes can see that a rank has ended, and that others
are inside MPI. Both together do not occur in a healthy job: MPI begins and ends when all ranks have come. The wait has
a limit of SECONDS. Time in which the rank is stopped does not count, as it would for a plain timer.

**Later** it reports the rank's unexpected end. Launchers take a process that ends with exit code 0 for finished, also
in the middle of a job. Causes are ``os._exit``, ``exit`` in a C library, or a program that ``os.exec`` has started in
its place. Launchers do not name the lost rank. They wait for all processes that still hold its output, such as the
workers of a killed rank. So this program holds the rank's output, too, and its connection to the launcher (CONNECTION,
a file descriptor, or -1). If the rank's process is gone before it has reported its end, this program reports that. It
kills the children that the rank has left, and has the launcher end the job (PMI-1's command ``abort``, which Hydra
supports).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

BEGUN, ENDED, ABORTS = b"b", b"e", b"a"  # messages of the rank; the last one: it ends the job, and reports it itself
CHECKS_BEFORE_REPORT = (
    3  # positive checks in succession until a report: at MPI's end the last rank may be a moment late
)
_CHECKS_OF_A_RANK = 6  # more than tfdist-run needs, which reports first
_START_LOOK_SECONDS = 1.0
_LOOK_SECONDS = 0.25  # between two checks, if Linux cannot report the end of a process
_ENDING_SECONDS = 0.5  # for a launcher that ends the job to close its connections
_OUTPUT_SECONDS = 0.2  # for the launcher to forward a message
_ASKED_TO_END = signal.SIGTERM, signal.SIGINT, signal.SIGHUP  # the launcher reports these itself
_EXIT_CODE, _STATE, _PARENT = 49, 0, 1  # fields of /proc/PID/stat behind the program's name
_LAUNCHERS, _PROXY = ("mpiexec", "mpirun"), "hydra_pmi_proxy\n"
# MPICH's own memory, which the ranks of a machine share from MPI_Init to MPI_Finalize.
_SHARED_MEMORY = re.compile(r"/dev/shm/mpich_")
_READ = ("0", "63")  # the system call's number: on x86, on ARM


def main(rank: str, size: str, pid: int, connection: int, seconds: float) -> None:
    """Watch the start of a process and wait for its end. If it was unexpected, report it, and end its children."""
    if os.fork():
        os._exit(0)  # so that the rank has no child
    os.setsid()
    for number in _ASKED_TO_END:
        signal.signal(number, signal.SIG_IGN)
    outputs = _pipes(connection)
    above = _above(pid)
    if not _has_begun(rank, pid, connection, seconds):
        return
    quiet = _wait(pid)
    status = _status(pid)
    ended_by = status & 0x7F if status is not None else 0
    if not quiet and ended_by not in _ASKED_TO_END and not _hung_up(connection):
        code = status >> 8 if status is not None else 0
        how = f"was ended by {_named(ended_by)}" if ended_by else f"has left with exit code {code}"
        hint = "; the kernel does so when memory runs out" if ended_by == signal.SIGKILL else ""
        hint = (
            hint if ended_by else ", without coming to its program's end (for example os._exit, or exit in a library)"
        )
        if status is None:
            how, hint = "has ended before its program's end", "; only its parent process has the exit code"
        _say(f"rank {rank} of {size} (process {pid} on {os.uname().nodename}) {how}{hint}: the job ends")
        end_job(connection, 128 + ended_by if ended_by else code or 1)  # first: nothing can hold it up
    _end(outputs, above)


def _has_begun(rank: str, pid: int, connection: int, seconds: float) -> bool:
    """Wait until all ranks have begun; return False if this rank has ended before. If they cannot, end the job."""
    proxy = _parent(pid)
    while proxy > 1 and _text(proxy, "comm") != _PROXY:
        proxy = _parent(proxy)
    absent = AbsentRanks(_parent(proxy), _CHECKS_OF_A_RANK) if proxy > 1 else None  # else the launcher is not Hydra
    waited, last = 0.0, time.monotonic()
    while not select.select([0], [], [], _START_LOOK_SECONDS)[0]:
        now = time.monotonic()
        waited += 0.0 if _fields(pid)[_STATE] == "T" else min(now - last, 2 * _START_LOOK_SECONDS)
        last = now
        words = absent.look() if absent else ""
        if words.endswith(f"where rank {rank} waits for it"):  # only the rank that waits reports it
            _say(f"{words}: the job ends; read that rank's messages above")
        elif waited > seconds:
            _say(
                f"rank {rank} has waited {waited:.0f} s for MPI to begin. A rank is stopped, has not reached its "
                "import of tfdist, or cannot be reached. The job ends (TFDIST_STALL_ABORT_SECONDS is the limit)"
            )
        else:
            continue
        end_job(connection, 1)
        return False
    return os.read(0, 1) == BEGUN


def _say(words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"tfdist: {words}\n".encode())
        time.sleep(_OUTPUT_SECONDS)


def end_job(connection: int, exit_code: int) -> None:
    """Have the launcher end all ranks, whatever they do, with PMI-1's command ``abort``, which Hydra supports."""
    if connection >= 0:
        with contextlib.suppress(OSError):
            os.write(connection, f"cmd=abort exitcode={exit_code}\n".encode())


def _wait(pid: int) -> bool:
    """Wait until the process is gone. Return True if its end is not to be reported."""
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    gone = None
    with contextlib.suppress(OSError, AttributeError):  # Linux before 5.3, or a container that forbids it
        gone = os.pidfd_open(pid)
        waiting.register(gone, select.POLLIN)
    quiet = False
    while True:
        found = [descriptor for descriptor, _ in waiting.poll(None if gone else 1e3 * _LOOK_SECONDS)]
        if 0 in found:
            words = os.read(0, 1)
            if words == ENDED:
                os._exit(0)
            quiet = quiet or words == ABORTS
            if not words:  # the rank's end of the pipe is closed
                waiting.unregister(0)
        if gone in found or (gone is None and _is_gone(pid)):
            return quiet


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_gone(pid: int) -> bool:
    if os.path.exists("/proc/self/stat"):
        return _fields(pid)[_STATE] in "ZX"
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def _fields(pid: int) -> list[str]:
    """Return the fields of a process's status, from its state on; if it is gone, those of a dead process."""
    return _text(pid, "stat").rpartition(")")[2].split() or ["X", "0"]


def _parent(pid: int) -> int:
    return int(_fields(pid)[_PARENT])


def _status(pid: int) -> int | None:
    """Return a process's status in the form of ``os.wait``; None if its parent has waited for it already."""
    fields = _fields(pid)
    return int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE and fields[_STATE] == "Z" else None


def _hung_up(connection: int) -> bool:
    """Return whether the launcher has ended the job, and this rank with it."""
    if connection < 0:
        return True  # this launcher handles lost ranks itself
    closed = select.poll()
    closed.register(connection, 0)
    return bool(closed.poll(1e3 * _ENDING_SECONDS))


def _above(pid: int) -> set[int]:
    """Return the ancestors of a process."""
    found = set()
    while pid > 1 and pid not in found:
        pid = _parent(pid)
        found.add(pid)
    return found


def _pipes(connection: int) -> set[str]:
    """Return the rank's output pipes and its connection: the launcher waits for their end. A FIFO is not from it."""
    return {name for n in (1, 2, connection) if (name := _name("self", n)).startswith(("pipe:[", "socket:["))}


def _name(pid: str, descriptor: int | str) -> str:
    """Return what a descriptor of a process is: a path, or ``pipe:[INODE]`` or ``socket:[INODE]``; empty if unknown.

    It does not ask the file system: one that does not answer would never return.
    """
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return ""


def _end(outputs: set[str], above: set[int]) -> None:
    """Kill all other processes that write to these outputs: the rank's children, which nobody needs any more."""
    if not os.path.exists("/proc/self/stat"):
        return
    holders = {int(name) for name in os.listdir("/proc") if name.isdigit() and _writes(name, outputs)}
    wrappers = holders & above  # shells that have started the rank: their other children do not belong to it
    for pid in holders - above - {os.getpid()}:
        if _parent(pid) not in wrappers:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _writes(pid: str, outputs: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            if _name(pid, descriptor) in outputs:
                with open(f"/proc/{pid}/fdinfo/{descriptor}") as file:
                    flags = next(line for line in file if line.startswith("flags:"))
                if int(flags.split()[1], 8) & os.O_ACCMODE:  # the launcher itself only reads
                    return True
    return False


class AbsentRanks:
    """Checks the processes of one launcher on this machine; the caller repeats the check.

    Args:
      launcher: process ID of the launcher.
      sightings: number of positive checks in succession until ``look`` reports.
      machines: number of machines with ranks; 0: unknown. A connection may end before the first check.
    """

    def __init__(self, launcher: int, sightings: int = CHECKS_BEFORE_REPORT, machines: int = 0) -> None:
        self._launcher = launcher
        self._wanted = sightings
        self._machines = machines
        self._sightings = 0

    def look(self) -> str:
        """Check once. Return which rank waits for which ended rank, as text; empty if none does, or not long enough."""
        found = self._look()
        self._sightings = self._sightings + 1 if found else 0
        return found if self._sightings >= self._wanted else ""

    def _look(self) -> str:
        children = _children(self._launcher)  # a proxy here, and the connections to other machines
        self._machines = max(self._machines, len(children))
        # (On another machine a proxy's parent is the connection.)
        launches = _text(self._launcher, "comm").startswith(_LAUNCHERS)
        for proxy in children:
            if _text(proxy, "comm") != _PROXY:
                continue
            processes = _children(proxy)
            every = {pid: _variables(pid) for pid in processes}
            told = {pid: variables for pid, variables in every.items() if {"PMI_RANK", "PMI_SIZE"} <= variables.keys()}
            here = any(len(processes) < int(variables.get("MPI_LOCALNRANKS", 0)) for variables in told.values())
            if launches and any(_has_ranks_elsewhere(variables) for variables in told.values()):
                self._machines = max(self._machines, 2)
            elsewhere = len(children) < self._machines
            for pid, variables in told.items() if here or elsewhere else ():
                if any(_waits(process, variables, here) for process in _tree(pid)):
                    numbers = {int(other["PMI_RANK"]) for other in told.values()}
                    missing = set(range(int(variables["PMI_SIZE"]))) - numbers
                    who = f"rank {missing.pop()}" if len(missing) == 1 else "a rank"
                    return f"{who} has ended before MPI began, where rank {variables['PMI_RANK']} waits for it"
        return ""


def _has_ranks_elsewhere(variables: Mapping[str, str]) -> bool:
    return int(variables.get("MPI_LOCALNRANKS", variables["PMI_SIZE"])) < int(variables["PMI_SIZE"])


def _waits(pid: int, variables: Mapping[str, str], here: bool) -> bool:
    """Return whether a process is inside MPI, or waits for the launcher's message that all ranks have come."""
    connection = int(variables.get("PMI_FD", -1))  # -1 if the connection is a port
    call, *arguments = [*_text(pid, "syscall").split(), ""]
    if call in _READ and int(arguments[0], 16) == connection and _is_socket(pid, connection):
        return True
    # After the loss of a machine, ranks may continue for a while: the user may have asked for it.
    return here and _SHARED_MEMORY.search(_text(pid, "maps")) is not None


def _is_socket(pid: int, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:")
    return False


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for child in _children(pid):
        yield from _tree(child)


def _children(pid: int) -> list[int]:
    return [int(child) for child in _text(pid, f"task/{pid}/children").split()]


def _variables(pid: int) -> dict[str, str]:
    """Return a process's environment at its start; empty if this process may not read it."""
    return dict(entry.partition("=")[::2] for entry in _text(pid, "environ").split("\0") if "=" in entry)


def _text(pid: int, name: str) -> str:
    # A process may end at any time, and some systems hide other processes.
    with contextlib.suppress(OSError):
        return os.fsdecode(Path(f"/proc/{pid}/{name}").read_bytes())
    return ""


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
