"""Every case at every world size: one launch each, its cases reported one by one."""

from __future__ import annotations

import ast
import functools
import json
import tempfile
from pathlib import Path

import pytest

from tests.launch import mpirun

SIZES = (1, 2, 3, 4)
# Twelve minutes would mean a hang; a single wait inside gives up long before.
TIMEOUT_SECONDS = 400


def case_names() -> list[str]:
    """The names in the case modules, without importing TensorFlow into the test process."""
    return [
        f"{path.stem}.{node.name}"
        for path in sorted(Path(__file__).parent.glob("cases_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
    ]


@functools.cache
def results(size: int) -> tuple[dict[str, str], str]:
    """What became of each case on so many ranks, and how the job ended."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report"
        settings = {"TFDIST_STALL_SECONDS": "10", "TFDIST_STALL_ABORT_SECONDS": "60"}
        job = mpirun(size, ["-m", "tests.multirank.runner", str(report)], TIMEOUT_SECONDS, settings)
        lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    ending = f"exit code {job.code} after {job.seconds:.0f} s\n{job.output[-3000:]}\n{job.errors[-6000:]}"
    return {line["case"]: line["failure"] for line in lines}, ending


@pytest.mark.parametrize("case", case_names())
@pytest.mark.parametrize("size", SIZES)
def test_case(size: int, case: str) -> None:
    failures, ending = results(size)
    if case not in failures:
        pytest.fail(f"{case} did not finish on {size} ranks: {ending}")
    if failures[case]:
        pytest.fail(failures[case])
