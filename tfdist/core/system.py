"""System: what only Linux can tell or do, in one place. On other systems each function has the answer that is safe.

Two kinds of memory that ranks share need Linux, too, and say so where they are tried: ``processes.mapped_memory`` and
``processes.cuda_memory``. Elsewhere ranks send messages through MPI. A program that runs without the
package (``processes.companion_process``) reads /proc by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import re
import signal
import stat
import tempfile
import time
from pathlib import Path

SHARED_MEMORY = "/dev/shm"  # may not exist
_DESCRIPTOR_FROM = 800
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # processes with the same boot ID have the same clock


def only_ours(folder: str) -> bool:
    """Return whether a folder belongs to this user or to root, and not everybody can put files there."""
    with contextlib.suppress(OSError):
        link, state = os.lstat(folder), os.stat(folder)  # whoever owns a link can lead it to another folder
        owned = {link.st_uid, state.st_uid} <= {os.geteuid(), 0}
        return owned and stat.S_ISDIR(state.st_mode) and not state.st_mode & stat.S_IWOTH
    return False


def memory_folder() -> str:
    """Return the folder of files that processes share as memory: one without a disk, if the system has it."""
    return SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else tempfile.gettempdir()


def reserve(file: int, start: int, size_bytes: int) -> None:
    """Allocate a part of an open file.

    Raises:
      OSError: there is not enough space.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, size_bytes)
    else:
        os.pwrite(file, b"\0", start + size_bytes - 1)


def out_of_reach(descriptor: int) -> int:
    """Return another descriptor in place of this one, which is closed: a high one, if the process may have such.

    If a script closes descriptors that it does not know, its next files get low ones, and not ours.
    """
    try:
        other = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR_FROM)
    except OSError:
        return descriptor
    os.close(descriptor)
    return other


def process_text(pid: int | str, name: str) -> str:
    """Return a file of a process (proc(5)); empty if there is none, or if this process may not read it."""
    # (A process may end at any time, and some systems hide other processes.)
    with contextlib.suppress(OSError):
        return os.fsdecode(Path(f"/proc/{pid}/{name}").read_bytes())
    return ""


def system_text(name: str) -> str:
    """Return a file of /proc that describes the machine; empty if there is none."""
    return process_text("", name)


def memory_limit() -> tuple[float, float]:
    """Return the limit of this container's memory and the used part, in bytes; infinity and 0 without a limit."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            return float(Path(limit).read_text()), float(Path(used).read_text())
    return float("inf"), 0.0


def processors() -> frozenset[int]:
    """Return the numbers of the processors that this process may use; all of the machine if that is unknown."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:
        return frozenset(range(os.cpu_count() or 1))


def processor_flags() -> frozenset[str]:
    """Return the words that describe the processors' abilities; empty if unknown."""
    with contextlib.suppress(OSError):
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    return frozenset()


def yield_processor() -> None:
    """Let another thread or process of this processor run."""
    try:
        os.sched_yield()
    except AttributeError:
        time.sleep(0)


def mapped_files(pattern: str) -> list[str]:
    """Return the files in this process's memory, such as libraries, that match a pattern; empty if unknown."""
    return re.findall(rf" ({pattern})$", process_text("self", "maps"), re.MULTILINE)


def runs(pid: int) -> bool:
    """Return whether a process of this machine exists, also one of another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def children(pid: int) -> list[int]:
    """Return the child processes of a process's first thread; empty if unknown."""
    return [int(child) for child in process_text(pid, f"task/{pid}/children").split()]


def kill_session(leader: int) -> None:
    """Kill all processes of a session; where they cannot be listed, those of its leader's group."""
    try:
        entries = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        with contextlib.suppress(OSError):
            os.killpg(leader, signal.SIGKILL)
        return
    for pid in entries:
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def end_with_parent(number: signal.Signals) -> None:
    """Have this process get a signal when the thread that has started it ends, if the system can do this."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def machine_identifier() -> str:
    """Return a text that processes of one machine share, until it starts again."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return platform.node()
