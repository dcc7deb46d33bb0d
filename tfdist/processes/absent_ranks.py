"""Absent ranks: a rank has ended before MPI began, and others wait for it in MPI for ever. For Hydra, MPICH's launcher.

Hydra ends a job if a rank ends without ``MPI_Finalize``, but not if the rank has never begun MPI. Hydra then takes it
for a program without MPI. Only a rank's parent learns how the rank has ended. But other processes can see that it has
ended, and that other ranks are inside MPI. Both together do not occur in a healthy job: MPI begins and ends when all
ranks have come.

``tfdist-run`` checks for this. So does a small program for each rank while MPI begins, when no Python thread of the
rank can run. This program also limits the wait. It does not count the time in which the rank is stopped, as a plain
timer would. It imports nothing of the package:

    python -I -S absent_ranks.py RANK CONNECTION SECONDS
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CHECKS_BEFORE_REPORT = (
    3  # positive checks in succession until a report: at MPI's end the last rank may be a moment late
)
_CHECKS_OF_A_RANK = 6  # more than tfdist-run needs, which reports first
_LOOK_SECONDS = 1.0
_OUTPUT_SECONDS = 0.2  # for the launcher to forward a message
_LAUNCHERS, _PROXY = ("mpiexec", "mpirun"), "hydra_pmi_proxy\n"
# MPICH's own memory, which the ranks of a machine share from MPI_Init to MPI_Finalize.
_SHARED_MEMORY = re.compile(r"/dev/shm/mpich_")
_READ = ("0", "63")  # the system call's number: on x86, on ARM


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


def main(rank: str, connection: int, seconds: float) -> None:
    """Check until the rank, the parent of this process, closes standard input because MPI has begun."""
    pid = proxy = os.getppid()
    while proxy > 1 and _text(proxy, "comm") != _PROXY:
        proxy = _parent(proxy)
    absent = AbsentRanks(_parent(proxy), _CHECKS_OF_A_RANK) if proxy > 1 else None  # else the launcher is not Hydra
    words, waited, last = "", 0.0, time.monotonic()
    while not words:
        if select.select([0], [], [], _LOOK_SECONDS)[0]:
            return
        now = time.monotonic()
        waited += 0.0 if _fields(pid)[:1] == ["T"] else min(now - last, 2 * _LOOK_SECONDS)
        last = now
        found = absent.look() if absent else ""
        if found.endswith(f"where rank {rank} waits for it"):  # only the rank that waits reports it
            words = f"{found}: the job ends; read that rank's messages above"
        elif waited > seconds:
            words = (
                f"rank {rank} has waited {waited:.0f} s for MPI to begin. A rank is stopped, has not reached its "
                "import of tfdist, or cannot be reached. The job ends (TFDIST_STALL_ABORT_SECONDS is the limit)"
            )
    os.write(2, f"tfdist: {words}\n".encode())
    time.sleep(_OUTPUT_SECONDS)
    with contextlib.suppress(OSError):
        os.write(connection, b"cmd=abort exitcode=1\n")


def _parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def _fields(pid: int) -> list[str]:
    """Return the fields of a process's status, from its state on."""
    return _text(pid, "stat").rpartition(")")[2].split()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
