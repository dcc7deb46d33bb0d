"""Checks of one machine: each has a test that shows it firing."""

from __future__ import annotations

import errno
import os
import socket
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tfdist.core import system
from tfdist.doctor import machine
from tfdist.doctor.findings import FIX, NOTE, OK, Finding
from tfdist.launch import launchers
from tfdist.processes import devices

FACTS = {"tensorflow": "2.21.0", "mpi": "MPICH Version: 5.0.2", "mpi_file": "", "prefix": "/usr", "error": ""}


def found(what: str, ranks: int = 2, loaded: tuple[str, ...] = ()) -> Finding:
    """Return the last finding of a name."""
    return [finding for finding in machine.examine(machine.facts(), ranks, loaded) if finding.what == what][-1]


def test_this_machine_is_fine_but_for_what_it_lacks() -> None:
    states = {finding.what: finding.state for finding in machine.examine(machine.facts(), 1, ())}
    assert FIX not in states.values(), states
    assert len(states) == 13


@pytest.mark.parametrize(
    ("facts", "what", "state", "told"),
    [
        ({"tensorflow": "none"}, "TensorFlow", FIX, "pip install 'tfdist[tensorflow]'"),
        ({"tensorflow": "2.15.0"}, "TensorFlow", FIX, "tfdist needs 2.16.2 or newer"),
        ({"tensorflow": "2.30.0"}, "TensorFlow", NOTE, "newer than"),
        (
            {"mpi": "", "error": "cannot load MPI library"},
            "MPI",
            FIX,
            "cannot load MPI library. pip install 'tfdist[mpich]'",
        ),
        ({"mpi": "Intel(R) MPI Library 2021.1"}, "MPI", FIX, "no mpirun of this MPI is known"),
    ],
)
def test_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, str], what: str, state: str, told: str
) -> None:
    monkeypatch.setattr(launchers, "facts_here", lambda python: {**FACTS, **facts})
    finding = found(what)
    assert finding.state == state and told in finding.told, finding


def test_modules_that_came_before() -> None:
    finding = found("import order", loaded=("os", "tensorflow", "mpi4py.MPI"))
    assert finding.state == NOTE and finding.told.startswith("tensorflow and mpi4py.MPI was imported before tfdist")


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_BUCKET_MB", "7")
    assert found("settings") == Finding(OK, "settings", "TFDIST_BUCKET_MB")
    monkeypatch.setenv("TFDIST_BUCKET_MB", "-7")
    assert "out of range" in found("settings").told
    monkeypatch.delenv("TFDIST_BUCKET_MB")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert found("settings").state == FIX


def test_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME", raising=False)
    for library, state in (("Open MPI v5.0.11", FIX), ("MPICH Version: 5.0.2", OK)):
        monkeypatch.setattr(launchers, "facts_here", lambda python, library=library: {**FACTS, "mpi": library})
        assert found("home").state == state
    for home, state in (("/tmp", FIX), ("", FIX), ("/absent", FIX), (str(tmp_path), OK)):
        monkeypatch.setenv("HOME", home)
        finding = machine._home({**FACTS, "mpi": "Open MPI v5.0.11"})
        assert finding.state == state and ("yours alone: export HOME=$(mktemp -d)" in finding.told) == (state == FIX)


def test_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    assert machine.processors(10_000, 4).state == NOTE and machine.processors(2, 2).state == OK
    assert found("memory", ranks=100_000).state == NOTE
    assert found("shared memory", ranks=10_000_000).state == NOTE
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 512))
    assert found("open files").told == "256 open files: many ranks and datasets need more. ulimit -n 1024"
    monkeypatch.setattr(system, "memory_limit", lambda: (4.0 * 2**30, 3.5 * 2**30))
    assert found("memory").told.startswith("0.5 of 4.0 GiB free for 2 ranks")


def test_memory_that_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **more: Any) -> Any:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert found("mapped memory").state == NOTE


def test_a_full_disk_and_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: usage(2**20))
    assert "Free it, or set TMPDIR" in found("temporary files").told

    def unknown(*arguments: Any, **more: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "does not resolve here" in found("host name").told


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus_of_machine", lambda: 4)
    assert found("GPUs", ranks=4) == Finding(OK, "GPUs", "4 of 4")
    assert "share them: start one rank for each GPU" in found("GPUs", ranks=8).told
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert found("GPUs", ranks=2).told.startswith("1 of 4 (CUDA_VISIBLE_DEVICES=1) for 2 ranks")
