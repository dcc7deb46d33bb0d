"""End of a job when one rank fails: the faults of ``scripts/stress/faults``, once each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT

# Ways to lose a rank that look like success, or that leave a process behind.
_CHOSEN = ("_exit of C with forked workers", "exec of C", "killed with spawned", "SIGHUP")


@pytest.mark.parametrize(
    "words", [_CHOSEN, pytest.param((), marks=pytest.mark.long("five minutes; those above are of each kind"))]
)
def test_all_ends_are_as_they_should_be(words: tuple[str, ...], tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    only = ["--only", *words] if words else []
    command = [sys.executable, str(ROOT / "scripts/stress/faults"), "--times", "1", "--json", str(table), *only]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(json.loads(table.read_text())["faults"]) >= len(words)
