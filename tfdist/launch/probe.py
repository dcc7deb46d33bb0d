"""What is installed on a machine, and which MPI mpi4py loads there, without starting that MPI: one line of JSON.

``tfdist-run`` hands this file's text to ``python -`` here and, through ssh, on other machines, which may have no tfdist
at all: it must import nothing of the package, and read nothing but the machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path


def main() -> None:
    """Print the facts."""
    library, path, error = _mpi()
    facts = {
        "python": platform.python_version(),
        "tfdist": _tfdist(),
        "tensorflow": _installed("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
        "mpi4py": _installed("mpi4py"),
        "mpi": library,
        "mpi_file": path,
        "error": error,
        "prefix": sys.prefix,
        "cores": len(_cores()),
        "all_cores": len(os.sched_getaffinity(0)) == os.sysconf("SC_NPROCESSORS_ONLN"),
    }
    print(json.dumps(facts))


def _installed(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return "none"


def _tfdist() -> str:
    # From the source, which need not be installed; an import of the package would start it.
    spec = importlib.util.find_spec("tfdist")
    if spec is None or spec.origin is None:
        return "none"
    match = re.search(r'^__version__ = "(.*)"', Path(spec.origin).read_text(), re.MULTILINE)
    return match.group(1) if match else "unknown"


def _mpi() -> tuple[str, str, str]:
    """The library's version, its file, and why there is none."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
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


if __name__ == "__main__":
    main()
