"""The example scripts train, on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch import ROOT, mpirun

# One tells whether they start, and learn.
ALWAYS = ("tape_in_function",)
LONG = pytest.mark.long("multirank/cases_*.py have its style")
EXAMPLES = [
    pytest.param(path, marks=() if path.stem in ALWAYS else LONG, id=path.stem)
    for path in sorted((ROOT / "scripts" / "examples").glob("*.py"))
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_example(path: Path) -> None:
    finished = mpirun(2, [str(path)], 100)
    assert finished.code == 0, finished.errors
    losses = re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", finished.output, re.MULTILINE)
    assert len(losses) == 1, finished.output  # one rank speaks
    assert float(losses[0][1]) < 0.6 * float(losses[0][0])
