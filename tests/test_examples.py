"""The example scripts train, on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch import ROOT, mpirun

pytestmark = pytest.mark.long("multirank/cases_*.py have their styles, and test_readme.py runs the README's script")
FOLDER = ROOT / "scripts" / "examples"
# For one process, without a word of tfdist but the import: each rank says what it has found.
FOR_ONE_PROCESS = {"image": "--images=512", "speech": "--utterances=256"}
EXAMPLES = [
    pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.py")) if path.stem not in FOR_ONE_PROCESS
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_example(path: Path) -> None:
    finished = mpirun(2, [str(path)], 100)
    assert finished.code == 0, finished.errors
    losses = re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", finished.output, re.MULTILINE)
    assert len(losses) == 1, finished.output  # one rank speaks
    assert float(losses[0][1]) < 0.6 * float(losses[0][0])


@pytest.mark.parametrize("name", FOR_ONE_PROCESS)
def test_a_script_for_one_process(name: str) -> None:
    """Two ranks with half of the batch each train as one process."""
    said = []
    for ranks in (1, 2):
        arguments = [str(FOLDER / f"{name}.py"), "--epochs=2", f"--batch={32 // ranks}", FOR_ONE_PROCESS[name]]
        finished = mpirun(ranks, arguments, 200, {"TFDIST_AUTOSHARD": "1"})
        assert finished.code == 0, finished.errors
        lines = re.findall(r"^loss ([\d.]+) -> ([\d.]+), .*error rate", finished.output, re.MULTILINE)
        assert len(lines) == ranks and len(set(lines)) == 1, finished.output
        said.append([float(one) for one in lines[0]])
    assert said[1] == pytest.approx(said[0], rel=1e-3)
    assert said[0][1] < said[0][0]
