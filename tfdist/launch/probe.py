"""What is installed on a machine, and which MPI mpi4py loads there, without starting that MPI: one line of JSON.

``tfdist-run`` hands this file's text to ``python -`` here and, through ssh, on other machines, which may have no tfdist
at all: it must import nothing of the package, and read nothing but the machine. It runs in ``FOLDER``, and looks into
the ranks' own folder without importing from it.
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Python looks for modules in the current folder, which empty and relative entries of PYTHONPATH are, too: here nobody
# can make a file.
FOLDER = "/proc"
_PORT = 47613  # MPI chooses any, and so is this: that nobody listens there is an answer of the machine
_CONNECT_SECONDS = 4.0
_LEAST_BYTES = 1 << 20  # of the ranks' own files
_SHARED_MEMORY, _SHARED_BYTES = "/dev/shm", 1 << 24  # MPI's own


def main(questions: str = "{}") -> None:
    """Print the facts.

    Args:
      questions: asks, in JSON, for more: ``folder``, where the ranks run; ``program``, a file; ``module``, a name;
        ``hosts``, names to be known; ``peers``, addresses by name.
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
        "all_cores": len(os.sched_getaffinity(0)) == os.sysconf("SC_NPROCESSORS_ONLN"),
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
    """Where the ranks look for modules."""
    entries = [os.path.join(folder, entry) for entry in _variable("PYTHONPATH").split(os.pathsep)]
    return [folder, *entries, *sys.path] if folder else sys.path


def _installed(path: Sequence[str], *distributions: str) -> str:
    for name in distributions:
        for found in importlib.metadata.distributions(name=name, path=list(path)):
            return found.version or "none"
    return "none"


def _tfdist(path: Sequence[str]) -> str:
    # From the source, which need not be installed; an import of the package would start it.
    spec = _found("tfdist", path)
    if spec is None or spec.origin is None:
        return "none"
    match = re.search(r'^__version__ = "(.*)"', Path(spec.origin).read_text(), re.MULTILINE)
    return match.group(1) if match else "unknown"


def _has(module: str, path: Sequence[str]) -> bool:
    return bool(module) and _found(module.split(".")[0], path) is not None


def _found(module: str, path: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    # An editable installation may have a finder of its own, which comes last.
    return importlib.machinery.PathFinder.find_spec(module, path) or importlib.util.find_spec(module)


def _digest(file: str) -> str:
    """What stands for a file's contents; empty if it is not there."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except OSError:
        return ""


def _temporary() -> str:
    # Not tempfile's answer, which is another folder where this one is full.
    return _variable("TMPDIR") or "/tmp"


def _variable(name: str) -> str:
    """Of the environment; empty if it is not there."""
    return os.path.expandvars(f"${name}").replace(f"${name}", "")


def _full(folder: str, least_bytes: int) -> str:
    """Why nothing can be written there for want of room; empty if it can, or if somebody else may."""
    try:
        with tempfile.TemporaryFile(dir=folder or None) as file:
            file.write(bytes(least_bytes))
    except PermissionError:
        return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return ""


def _network() -> str:
    """What stands for the machine, and for a container that has a network of its own."""
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
    """Why the machines at these addresses cannot be reached, by name, those that cannot."""

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
    """The library's version, its file, and why there is none."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        return "", "", str(error).strip().splitlines()[0]  # the rest lists where it looked
    maps = Path("/proc/self/maps").read_text(errors="replace")
    files = re.findall(r"(/\S*/libmpi\w*\.so\S*)", maps)
    return MPI.Get_library_version().splitlines()[0].strip("\0 "), files[0] if files else "", ""


def _cores() -> set[str]:
    """The physical cores this process may use, each named by its hardware threads."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    return cores
