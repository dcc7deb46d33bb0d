"""scripts/bench_nmt, as far as it goes before it measures."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench_nmt"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the script defines; no program is on PATH, and Python is in a directory of its own."""
    monkeypatch.syspath_prepend(str(BENCH.parent))  # as when a script is run
    found = runpy.run_path(str(BENCH))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "argv", ["bench_nmt"])
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    return found


def test_a_missing_mpirun_is_told_before_anything_is_measured(bench: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="mpirun is not on PATH; pip install mpich"):
        bench["main"]()


def test_mpirun_beside_python_is_found(bench: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mpirun").touch(mode=0o755)
    assert bench["mpirun"]() == str(tmp_path / "mpirun")
