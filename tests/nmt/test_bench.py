"""scripts/bench/train_nmt, up to its first measurement."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench" / "train_nmt"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the script's names; no program is on PATH, and Python is in a separate directory."""
    monkeypatch.syspath_prepend(str(BENCH.parent))  # as when a script is run
    found = runpy.run_path(str(BENCH))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "argv", ["train_nmt"])
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    return found


def test_a_missing_mpirun_is_told_before_anything_is_measured(bench: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="mpirun is not on PATH; pip install mpich"):
        bench["main"]()


def test_mpirun_beside_python_is_found(bench: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mpirun").touch(mode=0o755)
    assert bench["mpirun"]() == str(tmp_path / "mpirun")


def test_a_peer_that_is_not_there_is_told_before_anything_is_measured(
    bench: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mpirun").touch(mode=0o755)
    python = tmp_path / "torch" / "bin" / "python"
    monkeypatch.setattr(sys, "argv", ["train_nmt", "--ranks=1", "--peer=torch", f"--torch-python={python}"])
    with pytest.raises(SystemExit, match=r"cannot import torch.*pip install torch.*--torch-python="):
        bench["main"]()


def test_the_work_of_a_step_is_that_of_its_products(bench: dict[str, Any]) -> None:
    """Size T by hand, per word: encoder with two directions, keys; two cells and attention; the output layer."""
    encoder = 2 * (256 + 256) * 1024 + 512 * 256
    decoder = (512 + 256) * 1024 + (256 + 256) * 1024 + (256 + 512) * 256
    attention = 25 * 256 + 25 * 512
    forward = 2 * 128 * 25 * (encoder + decoder + attention + 256 * 8000)
    assert bench["flop"](bench["SIZES"]["T"], 128, 1.0) == 3 * forward
