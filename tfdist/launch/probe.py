"""Probe: prints what a Python has, and which MPI its mpi4py loads, without starting MPI, as a line of JSON.

``launchers`` passes this file's text to ``python -``, which may be another Python, without tfdist. So it imports
nothing of the package. It runs in one of ``FOLDERS``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import socket
import sys
from collections.abc import Collection
from pathlib import Path

# Python imports modules from the current folder, also by empty and relative entries of PYTHONPATH. In these folders no
# other user can make a file. Only Linux has the first, in which nobody can.
FOLDERS = "/proc", "/"


def main() -> None:
    """Print the facts."""
    library, path, error = _mpi()
    facts = {
        "python": platform.python_version(),
        "tensorflow": _installed("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
        "numpy": _installed("numpy"),
        "mpi4py": _installed("mpi4py"),
        "mpi": library,
        "mpi_file": path,
        "error": error,
        "prefix": sys.prefix,
        "cores": len(_cores()),
        "all_cores": len(_processors()) == os.sysconf("SC_NPROCESSORS_ONLN"),
        "interfaces": [name for _, name in socket.if_nameindex()],
    }
    print(json.dumps(facts))


def _installed(*distributions: str) -> str:
    for name in distributions:
        for found in importlib.metadata.distributions(name=name):
            return found.version or "none"
    return "none"


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


def _text(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
