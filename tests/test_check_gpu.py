"""``scripts/bench/gpu`` on CPUs; what it reports about GPUs needs a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.launch import run


@pytest.mark.long("a script for GPUs, of which there are none here")
def test_the_table(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    finished = run([sys.executable, "scripts/bench/gpu", "--anyway", "--json", str(out)], 280)
    assert finished.code == 0, finished
    found = json.loads(out.read_text())
    for engine in ("host", "collectives"):
        assert max(found["law"][engine].values()) < 1e-6, finished.output
        assert found["step"][engine].keys() == {"session", "function", "embedding", "fit"}, finished.output


def test_without_a_gpu() -> None:
    finished = run([sys.executable, "scripts/bench/gpu"], 60, {"CUDA_VISIBLE_DEVICES": "-1"})
    assert finished.code == 1
    assert finished.errors.startswith("gpu: TensorFlow sees no GPU here; ")
