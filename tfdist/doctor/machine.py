"""Machine: checks of one machine, before MPI starts and without TensorFlow."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tfdist
from tfdist.compat import versions
from tfdist.core import environment, system
from tfdist.core.settings import Settings, SettingsError
from tfdist.doctor.findings import FIX, NOTE, OK, Finding, of
from tfdist.launch import launchers
from tfdist.launch.hosts import LaunchError
from tfdist.processes import devices, mapped_memory

_PYTHONS = (3, 10), (3, 13)
_MEMORY_GIB = 2.0  # of a rank with TensorFlow and a model of medium size
_SHARED_MIB = 64  # of a rank, with what MPI takes
_DISK_MIB = 16
_FILES = 1024
_MIB = 1 << 20
_BEFORE = "tensorflow", "mpi4py.MPI"


def examine(facts: Mapping[str, Any], ranks: int, loaded: Collection[str]) -> Iterator[Finding]:
    """Yield the findings on this machine.

    Args:
      facts: its facts, see ``facts``.
      ranks: number of ranks of this machine.
      loaded: names of the modules that were imported before tfdist.
    """
    yield from _installed(facts)
    yield _import_order(loaded)
    yield _settings()
    yield _pair(facts)
    yield _home(facts)
    yield _memory(ranks)
    yield _shared_memory(ranks)
    yield _mapped_memory()
    yield _disk()
    yield _files()
    yield _name()
    yield _gpus(ranks)


def facts() -> Mapping[str, Any]:
    """Return the probe's facts on this machine, or why MPI cannot be used."""
    try:
        return {**launchers.facts_here(sys.executable), "tfdist": tfdist.__version__}
    except LaunchError as error:
        return {"mpi": "", "error": str(error)}


def _installed(facts: Mapping[str, Any]) -> Iterator[Finding]:
    (low, high), own = _PYTHONS, sys.version_info[:2]
    wrong = "" if low <= own <= high else f"tfdist needs Python {low[0]}.{low[1]} to {high[0]}.{high[1]}"
    yield of(wrong, "Python", f"{platform.python_version()} ({sys.executable})")
    found = facts.get("tensorflow", "none")
    remedy = "TensorFlow is not installed: pip install 'tfdist[tensorflow]'"
    yield of(remedy if found == "none" else versions.unsupported(found), "TensorFlow", found)
    if found != "none" and (remark := versions.untested(found)):
        yield Finding(NOTE, "TensorFlow", remark)


def _import_order(loaded: Collection[str]) -> Finding:
    early = [name for name in _BEFORE if name in loaded]
    told = (
        f"{' and '.join(early)} was imported before tfdist, by a startup file of Python (sitecustomize, *.pth). tfdist "
        "cannot prepare them then: remove the import there"
    )
    fine = "no startup file of Python imports TensorFlow or MPI"
    return of(told if early else "", "import order", fine, NOTE)


def _settings() -> Finding:
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        return Finding(FIX, "settings", str(error))
    backend = environment.variables().get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        return Finding(FIX, "settings", f"KERAS_BACKEND={backend}: tfdist needs KERAS_BACKEND=tensorflow")
    return Finding(OK, "settings", ", ".join(map(Settings.written, settings.origins)) or "the defaults")


def _pair(facts: Mapping[str, Any]) -> Finding:
    if not facts["mpi"]:
        return Finding(
            FIX, "MPI", f"{facts['error']}. pip install 'tfdist[mpich]', or load the cluster's MPI and build mpi4py"
        )
    try:
        launcher = launchers.find(facts, sys.executable)
    except LaunchError as error:
        return Finding(FIX, "MPI", str(error))
    return Finding(OK, "MPI", f"{' '.join(facts['mpi'].split())}, started by {launcher.path}")


def _home(facts: Mapping[str, Any]) -> Finding:
    home = environment.variables().get("HOME", "")
    needs = launchers.family_of(facts["mpi"]) == "Open MPI"
    lacks = (
        f"HOME is {home or 'not set'}, and Open MPI runs files that it finds there. Take a folder of yours alone: "
        "export HOME=$(mktemp -d)"
    )
    return of(lacks if needs and not system.only_ours(home) else "", "home", home or "none, and this MPI needs none")


def processors(ranks: int, usable: int) -> Finding:
    """Return the finding on this machine's processors.

    Args:
      ranks: number of ranks of this machine.
      usable: number of processors that these ranks may use together: a launcher may give each a part of them.
    """
    every = os.cpu_count() or 1
    told = f"{usable} of {every} processors"
    few = f"{told} for {ranks} ranks: they take turns. Start fewer ranks on this machine" if ranks > usable else ""
    return of(few, "processors", told, NOTE)


def _memory(ranks: int) -> Finding:
    total, free = memory_gib()
    told = f"{free:.1f} of {total:.1f} GiB free"
    little = f"{told} for {ranks} ranks: each needs 1 to 2 GiB and its model. Start fewer ranks, or smaller batches"
    return of(little if free < _MEMORY_GIB * ranks else "", "memory", told, NOTE)


def memory_gib() -> tuple[float, float]:
    """Return the memory of this machine or container and the free part, in GiB."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = float(page * os.sysconf("SC_PHYS_PAGES"))
    words = system.system_text("meminfo").split()
    free = float(words[words.index("MemAvailable:") + 1]) * 1024 if "MemAvailable:" in words else total
    limit, used = system.memory_limit()
    if limit < total:
        total, free = limit, min(free, limit - used)
    return total / 2**30, free / 2**30


def _shared_memory(ranks: int) -> Finding:
    place = system.memory_folder()
    status = os.statvfs(place)
    size, free = (blocks * status.f_frsize / _MIB for blocks in (status.f_blocks, status.f_bavail))
    told = f"{free:,.0f} of {size:,.0f} MiB free in {place}"
    little = f"{told}, and {ranks} ranks take up to {ranks * _SHARED_MIB} MiB: they exchange more slowly with less"
    remedy = f"{little}. Remove what other jobs have left there, or enlarge it (docker run --shm-size=1g)"
    return of(remedy if free < ranks * _SHARED_MIB else "", "shared memory", told, NOTE)


def _mapped_memory() -> Finding:
    try:
        memory = mapped_memory.Memory(16)
        mapped_memory.mapped(os.getpid(), memory.file, 16)
        problem = ""
    except (OSError, AttributeError) as error:
        problem = f"memory without a name cannot be mapped ({error}): ranks send messages through MPI, more slowly"
    return of(problem, "mapped memory", "ranks can map each other's memory", NOTE)


def _disk() -> Finding:
    place = environment.variables().get("TMPDIR") or "/tmp"  # tempfile returns another one if this is full
    try:
        free = shutil.disk_usage(place).free / _MIB
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_MIB))
    except OSError as error:
        told = f"{place}: {error.strerror}: failed jobs leave no record. Free it, or set TMPDIR"
        return Finding(NOTE, "temporary files", told)
    few = (
        f"{free:.0f} MiB free in {place}: failed jobs leave no record. Free it, or set TMPDIR"
        if free < _DISK_MIB
        else ""
    )
    return of(few, "temporary files", f"{free:,.0f} MiB free in {place}", NOTE)


def _files() -> Finding:
    import resource  # not on all systems

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    told = "no limit" if soft == unlimited else f"{soft} open files"
    few = f"{told}: many ranks and datasets need more. ulimit -n {_FILES}" if unlimited != soft < _FILES else ""
    return of(few, "open files", told, NOTE)


def _name() -> Finding:
    name = socket.gethostname()
    try:
        found = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        told = (
            f"{name} does not resolve here ({error}): other hosts will not find this one. Put it into /etc/hosts or DNS"
        )
        return Finding(NOTE, "host name", told)
    return Finding(OK, "host name", f"{name} is {found}")


def _gpus(ranks: int) -> Finding:
    gpus = devices.gpus_of_machine()
    visible = environment.variables().get("CUDA_VISIBLE_DEVICES")
    listed = devices.listed(visible, gpus)
    if not gpus:
        return Finding(OK, "GPUs", "none (no NVIDIA driver)")
    told = f"{len(listed)} of {gpus}" + ("" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})")
    few = f"{told} for {ranks} ranks, which share them: start one rank for each GPU" if len(listed) < ranks else ""
    return of(few, "GPUs", told, NOTE)
