"""The import of TensorFlow by a program: what it logs, and one message if TensorFlow is missing."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, mpirun, run

SAID = "TensorFlow cannot be imported (no such library): pip install 'tfdist[tensorflow]'"


@pytest.fixture
def without_tensorflow(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("raise ImportError('no such library', name='tensorflow')")
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.parametrize("program", ["nmt", "translate", "score", "export", "tune_search", "report"])
def test_programs_say_it_once(program: str, without_tensorflow: dict[str, str]) -> None:
    finished = run([sys.executable, "-m", f"nmt.{program}"], 60, without_tensorflow)
    assert finished.code == 1 and finished.errors == f"nmt: {SAID}\n", finished


def test_two_ranks_say_it_once(without_tensorflow: dict[str, str]) -> None:
    finished = mpirun(2, ["-m", "nmt.nmt"], 60, without_tensorflow)
    assert finished.code and finished.errors.count(SAID) == 1 and "Traceback" not in finished.errors, finished


# A module in place of TensorFlow, which logs before it reads the level, and ends the process.
_LOGS = """
import os, sys
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n"
            b"I0000 00:00:1795989553.992201 28511 port.cc:153] oneDNN custom operations are on.\\n"
            b"F0000 00:00:1795989553.992611 28511 cpu.cc:31] \\x00 last words\\n")
os.abort()
"""


@pytest.mark.parametrize("level", ["", "2", "0"])
def test_only_what_ends_the_process_is_shown(tmp_path: Path, level: str) -> None:
    (tmp_path / "tensorflow.py").write_text(_LOGS)
    told = {"TF_CPP_MIN_LOG_LEVEL": level} if level else {}
    program = ["env", "-u", "TF_CPP_MIN_LOG_LEVEL", *(f"{n}={v}" for n, v in told.items()), sys.executable]
    finished = run([*program, "-m", "nmt.nmt"], 60, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    said = finished.errors.splitlines()
    assert finished.code == -signal.SIGABRT and "last words" in said[-1], finished
    assert len(said) == (3 if level == "0" else 1), finished


def test_the_filter_does_not_outlive_the_import(tmp_path: Path) -> None:
    """A process that the import starts holds the pipe; without standard error there is nothing to filter."""
    (tmp_path / "tensorflow.py").write_text("import subprocess\nsubprocess.Popen(['sleep', '9'])\nraise SystemExit(7)")
    for closed in ("", "2>&-"):
        command = ["sh", "-c", f"{sys.executable} -m nmt.nmt {closed}"]
        finished = run(command, 60, {"PYTHONPATH": f"{tmp_path}:{ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"})
        assert finished.code == 7 and finished.seconds < 30, finished


def test_programs_without_tensorflow_run(without_tensorflow: dict[str, str]) -> None:
    finished = run([sys.executable, "-m", "nmt.prepare", "--help"], 60, without_tensorflow)
    assert finished.code == 0 and "--train_prefix" in finished.output, finished
