"""Watchdog process: a program that watches one rank, reports its unexpected end, and kills the children that it leaves.

    python -I -S watchdog_process.py RANK SIZE PID CONNECTION

Launchers take a process that ends with exit code 0 for finished, also in the middle of a job. Causes are ``os._exit``,
``exit`` in a C library, or a program that ``os.exec`` has started in its place. Launchers do not name the lost rank.
They wait for all processes that still hold its output, such as the workers of a killed rank. So this program holds the
rank's output, too, and its connection to the launcher (CONNECTION, a file descriptor, or -1). It does so until the rank
reports its end on standard input. If the rank's process is gone before, this program reports it and kills the children
that the rank has left. Then it has the launcher end the job (PMI-1's command ``abort``, which Hydra supports).

It imports nothing of the package, so that it starts at once and stays small. See ``watchdog``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

ENDED, ABORTS = b"e", b"a"  # messages of the rank: it needs no watchdog any more; it ends the job itself
_LOOK_SECONDS = 0.25  # between two checks, if Linux cannot report the end of a process
_ENDING_SECONDS = 0.5  # for a launcher that ends the job to close its connections
_ASKED_TO_END = signal.SIGTERM, signal.SIGINT, signal.SIGHUP  # the launcher reports these itself
_EXIT_CODE, _STATE, _PARENT = 49, 0, 1  # fields of /proc/PID/stat behind the program's name


def main(rank: str, size: str, pid: int, connection: int) -> None:
    """Wait for the end of a process. If it was unexpected, report it, kill the process's children and end the job."""
    if os.fork():
        os._exit(0)  # so that the rank has no child
    os.setsid()
    for number in _ASKED_TO_END:
        signal.signal(number, signal.SIG_IGN)
    outputs = _pipes(connection)
    above = _above(pid)
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
        with contextlib.suppress(OSError):
            where = f"process {pid} on {os.uname().nodename}"
            os.write(2, f"tfdist: rank {rank} of {size} ({where}) {how}{hint}: the job ends\n".encode())
            time.sleep(0.2)  # for the launcher to forward the message
        end_job(connection, 128 + ended_by if ended_by else code or 1)  # first: nothing can hold it up
    _end(outputs, above)


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
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


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
        pid = int(_fields(pid)[_PARENT])
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
        if int(_fields(pid)[_PARENT]) not in wrappers:
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
