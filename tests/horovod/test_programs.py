"""Usual Horovod scripts with one import changed end with the parameters of one process."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.launch import ROOT, mpirun

FOLDER = ROOT / "scripts" / "examples" / "horovod"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "digits")
RANKS, BATCH, RATE = 2, 24, 0.05
ALWAYS = ("session_hook",)
LONG = pytest.mark.long("the cases in this folder test the same style")


def weights(script: str, ranks: int, folder: Path) -> list[np.ndarray]:
    """Return a script's final weights; learning rate and batch are scaled to have the same total on any ranks."""
    file = folder / f"{ranks}.npz"
    factor = RANKS // ranks
    options = ["--batch-size", str(BATCH * factor), "--lr", str(RATE * factor), "--save", str(file)]
    finished = mpirun(ranks, [str(FOLDER / f"{script}.py"), *options], 200, {"TFDIST_STALL_ABORT_SECONDS": "100"})
    assert finished.code == 0, finished.output + finished.errors
    losses = re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", finished.output, re.MULTILINE)
    assert len(losses) == 1, finished.output  # one rank prints
    assert float(losses[0][1]) < 0.6 * float(losses[0][0])
    with np.load(file) as saved:
        return [saved[name] for name in saved.files]


@pytest.mark.parametrize("script", [pytest.param(s, marks=() if s in ALWAYS else LONG) for s in SCRIPTS])
def test_a_script_ends_as_one_process_does(script: str, tmp_path: Path) -> None:
    several, one = (weights(script, ranks, tmp_path) for ranks in (RANKS, 1))
    for own, other in zip(several, one, strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-4, atol=2e-5)
