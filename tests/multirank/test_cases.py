"""Every case at every world size: one launch each, its cases reported one by one."""

from __future__ import annotations

import ast
import functools
import importlib.util
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


# Other layouts and ways, for the cases that they could change.
_NAMES = ("every", "many", "random", "rows", "non_finite", "groups", "collectives", "join", "sparse_settings")
_ADDING = tuple(f"cases_engine.case_{name}" for name in _NAMES)
_TWO_BY_TWO = {"TFDIST_NODE_SIZE": "2", "TFDIST_OPTIONS": "engine=direct,bucket_mb=0.001"}
LAYOUTS = {
    "two nodes of two": (4, _TWO_BY_TWO, (*_ADDING, "cases_law")),
    "nodes of two and one": (3, {"TFDIST_NODE_SIZE": "2", "TFDIST_OPTIONS": "engine=direct"}, _ADDING),
    # One of the larger node's ranks adds nothing: it has no slice.
    "nodes of three and two": (5, {"TFDIST_NODE_SIZE": "3", "TFDIST_OPTIONS": "engine=direct"}, _ADDING),
    "through MPI alone": (2, {"TFDIST_ENGINE": "mpi"}, _ADDING),
}
# What another number of ranks could change: four take long on two cores, and one has nothing to exchange.
_WANTED = {
    1: ("cases_values", "cases_variables", "cases_programs"),
    2: ("cases_",),
    3: (
        "cases_engine", "cases_law", "cases_values", "cases_variables", "cases_programs", "cases_nmt",
        *(f"cases_keras.case_{x}" for x in ("optimizers", "ways", "models", "uneven", "logs", "state")),
        "cases_tf_keras.case_fit_functional",
    ),
    4: ("cases_engine", "cases_nmt.case_nmt_with_adam"),
}  # fmt: skip
# What has to be installed for a module's cases, beside what tfdist itself requires.
_NEEDS = {"cases_tf_keras": "tf_keras"}


@functools.cache
def results(size: int, layout: str = "") -> tuple[dict[str, str], str]:
    """What became of each case on so many ranks, and how the job ended."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report"
        settings = {"TFDIST_STALL_SECONDS": "10", "TFDIST_STALL_ABORT_SECONDS": "60"}
        wanted = LAYOUTS[layout][2] if layout else _WANTED[size]
        settings.update(LAYOUTS[layout][1] if layout else {})
        job = mpirun(size, ["-m", "tests.multirank.runner", str(report), *wanted], TIMEOUT_SECONDS, settings)
        lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    ending = f"exit code {job.code} after {job.seconds:.0f} s\n{job.output[-3000:]}\n{job.errors[-6000:]}"
    return {line["case"]: line["failure"] for line in lines}, ending


@pytest.mark.parametrize(
    ("size", "case"), [(s, name) for s in SIZES for name in case_names() if name.startswith(_WANTED[s])]
)
def test_case(size: int, case: str) -> None:
    check(case, size)


@pytest.mark.parametrize(
    ("layout", "case"), [(x, name) for x in LAYOUTS for name in case_names() if name.startswith(LAYOUTS[x][2])]
)
def test_layouts(layout: str, case: str) -> None:
    check(case, LAYOUTS[layout][0], layout)


def check(case: str, size: int, layout: str = "") -> None:
    needed = _NEEDS.get(case.partition(".")[0])
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    failures, ending = results(size, layout)
    if case not in failures:
        pytest.fail(f"{case} did not finish on {size} ranks: {ending}")
    if failures[case]:
        pytest.fail(failures[case])
