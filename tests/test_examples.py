"""The example scripts train, on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch import ROOT, mpirun

pytestmark = pytest.mark.long("multirank/cases_*.py have their styles, and test_readme.py runs the README's script")
EXAMPLES = [pytest.param(path, id=path.stem) for path in sorted((ROOT / "scripts" / "examples").glob("*.py"))]


@pytest.mark.parametrize("path", EXAMPLES)
def test_example(path: Path) -> None:
    finished = mpirun(2, [str(path)], 100)
    assert finished.code == 0, finished.errors
    losses = re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", finished.output, re.MULTILINE)
    assert len(losses) == 1, finished.output  # one rank speaks
    assert float(losses[0][1]) < 0.6 * float(losses[0][0])
