"""The example scripts train, on two ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, TFDIST_RUN, mpirun, run

_LONG = pytest.mark.long("multirank/cases_*.py have their styles, and test_readme.py runs the README's script")
FOLDER = ROOT / "scripts" / "examples"
# Scripts for one process, which only import tfdist: each rank prints its result.
FOR_ONE_PROCESS = {"image": "--images=512", "speech": "--utterances=256"}
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=[] if path.stem == "mixed_precision" else _LONG)
    for path in sorted(FOLDER.glob("*.py"))
    if path.stem not in (*FOR_ONE_PROCESS, "restart", "saved_model_client")
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_example(path: Path) -> None:
    finished = mpirun(2, [str(path)], 100)
    assert finished.code == 0, finished.errors
    losses = re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", finished.output, re.MULTILINE)
    assert len(losses) == 1, finished.output  # only one rank prints
    assert float(losses[0][1]) < 0.6 * float(losses[0][0])


@_LONG
@pytest.mark.parametrize("name", FOR_ONE_PROCESS)
def test_a_script_for_one_process(name: str) -> None:
    """Two ranks, each with half of the batch, train as one process does."""
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


@pytest.mark.long("launch/test_run.py restarts jobs, and nmt/runs/test_long_runs.py continues from checkpoints")
def test_restart(tmp_path: Path) -> None:
    """A rank dies at step 120; the second attempt continues from the checkpoint of step 100."""
    command = [sys.executable, str(TFDIST_RUN), "-n", "2", "--max-restarts", "1", sys.executable]
    finished = run([*command, str(FOLDER / "restart.py"), str(tmp_path), "--crash"], 100)
    assert finished.code == 0, finished.errors
    found = re.search(r"steps (\d+) to (\d+), loss ([\d.]+) -> ([\d.]+)", finished.output)
    assert found and found.groups()[:2] == ("100", "200"), finished.output
    assert (tmp_path / "ckpt-4.index").exists()


@pytest.mark.long("its cells train as the other examples do")
def test_the_notebook(tmp_path: Path) -> None:
    """Run the notebook's cells one after the other, as a kernel does."""
    lines = []
    for cell in json.loads((FOLDER / "notebook.ipynb").read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code" and text.startswith("%%writefile "):
            name, _, program = text.removeprefix("%%writefile ").partition("\n")
            (tmp_path / name).write_text(program)
        elif cell["cell_type"] == "code" and text.startswith("!"):
            lines.append(f"import subprocess; subprocess.run({text[1:].split()!r}, check=True)")
        elif cell["cell_type"] == "code":
            lines.append(text)
    script = tmp_path / "cells.py"
    script.write_text(f"import os; os.chdir({str(tmp_path)!r})\n" + "\n".join(lines))
    finished = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    losses = re.search(r"2 ranks, loss ([\d.]+) -> ([\d.]+)", finished.stdout)
    assert losses and float(losses[2]) < 0.5 * float(losses[1]), finished.stdout
    assert float(re.findall(r"error ([\d.]+)", finished.stdout)[0]) < float(losses[1])
