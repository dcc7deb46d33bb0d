"""Programs that need TensorFlow say in one message that it is missing, on one rank and on two."""

from __future__ import annotations

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


def test_programs_without_tensorflow_run(without_tensorflow: dict[str, str]) -> None:
    finished = run([sys.executable, "-m", "nmt.prepare", "--help"], 60, without_tensorflow)
    assert finished.code == 0 and "--train_prefix" in finished.output, finished
