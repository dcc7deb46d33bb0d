"""Probe: prints what is installed on a machine and which MPI mpi4py loads, without starting MPI, as a line of JSON.

``tfdist-run`` passes this file's text to ``python -`` here and, through ssh, on other machines. These may have no
tfdist, so this file must import nothing of the package, and read nothing but the machine. It runs in one of
``FOLDERS``, and searches the ranks' own folder without importing from it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Python imports modules from the current folder, also by empty and relative entries of PYTHONPATH. In these folders no
# other user can make a file. Only Linux has the first, in which nobody can.
FOLDERS = "/proc", "/"
_PORT = 47613  # any port, as MPI chooses any; if no process listens there, the machine answers all the same
_CONNECT_SECONDS = 4.0
_LEAST_BYTES = 1 << 20  # for files of the ranks
_SHARED_MEMORY, _SHARED_BYTES = "/dev/shm", 1 << 24  # for MPI


def main(questions: str = "{}") -> None:
    """Print the facts.

    Args:
      questions: further questions, in JSON. ``folder``: where the ranks run; ``program``: a file; ``module``: a name;
        ``hosts``: names to resolve; ``peers``: addresses by name.
    """
    asked = json.loads(questions)
    folder = asked.get("folder", "")
    library, path, error = _mpi()
    names = {name: _addresses(name) for name in asked.get("hosts", ())}
    known = {name: addresses[0] for name, addresses in names.items() if addresses}
    places = {folder: _LEAST_BYTES, os.path.join(folder, _temporary()): _LEAST_BYTES}
    places |= {_SHARED_MEMORY: _SHARED_BYTES} if os.path.isdir(_SHARED_MEMORY) else {}
    modules = _ranks_path(folder)
    facts = {
        "python": platform.python_version(),
        "tfdist": _tfdist(modules),
        "tensorflow": _installed(modules, "tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
        "numpy": _installed(modules, "numpy"),
        "mpi4py": _installed(modules, "mpi4py"),
        "mpi": library,
        "mpi_file": path,
        "error": error,
        "prefix": sys.prefix,
        "cores": len(_cores()),
        "all_cores": len(_processors()) == os.sysconf("SC_NPROCESSORS_ONLN"),
        "processor": _processor(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "folder": os.path.isdir(folder),
        "program": _digest(asked.get("program", "")),
        "module": _has(asked.get("module", ""), modules),
        "full": {place: why for place, least in places.items() if (why := _full(place, least))},
        "network": _network(),
        "names": names,
        "interfaces": [name for _, name in socket.if_nameindex()],
        "unreachable": _unreachable({**known, **asked.get("peers", {})}),
    }
    print(json.dumps(facts))


def _ranks_path(folder: str) -> list[str]:
    """Return the folders in which the ranks search modules."""
    entries = [os.path.join(folder, entry) for entry in _variable("PYTHONPATH").split(os.pathsep)]
    return [folder, *entries, *sys.path] if folder else sys.path


def _installed(path: Sequence[str], *distributions: str) -> str:
    for name in distributions:
        for found in importlib.metadata.distributions(name=name, path=list(path)):
            return found.version or "none"
    return "none"


def _tfdist(path: Sequence[str]) -> str:
    # From the source: the package need not be installed, and an import would start it.
    spec = _found("tfdist", path)
    if spec is None or spec.origin is None:
        return "none"
    match = re.search(r'^__version__ = "(.*)"', Path(spec.origin).read_text(), re.MULTILINE)
    return match.group(1) if match else "unknown"


def _has(module: str, path: Sequence[str]) -> bool:
    return bool(module) and _found(module.split(".")[0], path) is not None


def _found(module: str, path: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    # An editable installation may have its own finder, which comes last.
    return importlib.machinery.PathFinder.find_spec(module, path) or importlib.util.find_spec(module)


def _digest(file: str) -> str:
    """Return a digest of a file's content; empty if the file is not there."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:
        return ""


def _temporary() -> str:
    # Not by tempfile, which returns another folder if this one is full.
    return _variable("TMPDIR") or "/tmp"


def _variable(name: str) -> str:
    """Return an environment variable; empty if it is not set."""
    return os.path.expandvars(f"${name}").replace(f"${name}", "")


def _full(folder: str, least_bytes: int) -> str:
    """Return why a folder has no room for so many bytes; empty if it has, or if this user may not write there."""
    try:
        with tempfile.TemporaryFile(dir=folder or None) as file:
            file.write(bytes(least_bytes))
    except PermissionError:
        return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return ""


def _network() -> str:
    """Return an identifier of the machine, or of a container with its own network."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def _addresses(name: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def _unreachable(peers: Mapping[str, str]) -> dict[str, str]:
    """Return, by name, why machines at these addresses cannot be reached; without those that can."""

    def ask(address: str) -> str:
        try:
            socket.create_connection((address, _PORT), _CONNECT_SECONDS).close()
        except (ConnectionRefusedError, ConnectionResetError):
            pass
        except OSError as error:
            return f"{address}: {error.strerror or error}"
        return ""

    if not peers:
        return {}
    with ThreadPoolExecutor(min(64, len(peers))) as pool:
        reasons = dict(zip(peers, pool.map(ask, peers.values()), strict=True))
    return {name: reason for name, reason in reasons.items() if reason}


def _mpi() -> tuple[str, str, str]:
    """Return the MPI library's version, its file, and the error if there is no library."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        return "", "", str(error).strip().splitlines()[0]  # the rest lists where it was searched
    files = re.findall(r"(/\S*/libmpi\w*\.so\S*)", _text("/proc/self/maps"))
    return MPI.Get_library_version().splitlines()[0].strip("\0 "), files[0] if files else "", ""


def _cores() -> set[str]:
    """Return the physical cores that this process may use, each named by its hardware threads."""
    cores = set()
    for cpu in _processors():
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    return cores


def _processors() -> Collection[int]:
    """Return the numbers of the processors that this process may use; all of the machine if that is unknown."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _processor() -> str:
    """Return the processor's model."""
    found = re.search(r"^(?:model name|Model|cpu)\s*:\s*(.*)", _text("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _memory_gib() -> float:
    """Return the memory of this machine, or of this container if it has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if (limit := _text(file).strip()).isdecimal():
            total = min(total, int(limit))
    return total / 2**30


def _gpus() -> list[str]:
    """Return the models of the NVIDIA GPUs, in the order of their numbers."""
    folder = "/proc/driver/nvidia/gpus"
    files = [f"{folder}/{name}/information" for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []
    found = [re.search(r"^Model:\s*(.*)", _text(file), re.MULTILINE) for file in files]
    return [model.group(1).strip() if model else "unknown" for model in found]


def _text(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""
