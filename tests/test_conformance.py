"""``scripts/conformance`` tells equal results from different ones, and continues after failures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch import ROOT, Finished, run
from tests.named import subtest

CHOSEN = ("tape_and_assign_sub", "clipped_by_hand", "best_weights_kept")
SELF_CHECKS = {
    "self_check_apart": ("APART", "w is not the same on all ranks"),
    "self_check_told": ("told", "the ranks are apart on purpose: mend it"),
    "self_check_untold": ("APART", "w is not the same on all ranks"),
    "self_check_wrong": ("WRONG", "w is not what one process gets"),
    "self_check_differs": ("differs", "as it must: it is multiplied by the number of ranks"),
    "self_check_refused": ("refused", "XLA cannot compile the exchange"),
    "self_check_failed": ("FAILED", "rank 1: ValueError: on purpose"),  # not that rank 0 has waited for rank 1
}
LONG = pytest.mark.long("eleven programs; tests/multirank has their patterns")


def conformance(*arguments: str) -> Finished:
    return run([sys.executable, "scripts/conformance", *arguments], 280)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, dict[str, Any]]:
    """Run correct programs and programs that fail on purpose; a correct one comes after the failures."""
    path = tmp_path_factory.mktemp("conformance") / "rows.json"
    done = conformance("--only", *CHOSEN, "self_check*", "--stall-seconds", "4", "--json", str(path))
    return done, json.loads(path.read_text())


@LONG
def test_verdicts(finished: tuple[Finished, dict[str, Any]]) -> None:
    done, found = finished
    rows = {row["program"]: row for row in found["programs"]}
    assert rows.keys() == {*CHOSEN, *SELF_CHECKS, "self_check_after"}, done.errors
    for name in (*CHOSEN, "self_check_after"):
        with subtest(name):
            assert rows[name]["verdict"] == "equal", rows[name]
            assert rows[name]["difference"] <= 1e-5 and rows[name]["between_ranks"] <= 1e-6
    for name, (verdict, reason) in SELF_CHECKS.items():
        with subtest(name):
            assert rows[name]["verdict"] == verdict, rows[name]
            assert reason in rows[name]["reason"], rows[name]
    assert found["ranks"] == 2 and found["versions"].keys() >= {"tensorflow", "keras", "tfdist"}
    assert done.code == 1, "there are failures"


@LONG
def test_the_table(finished: tuple[Finished, dict[str, Any]]) -> None:
    done, found = finished
    head, *rows = done.output.split("\n\n")[0].splitlines()
    assert re.split(r"  +", head) == [
        "program", "style", "compared", "largest difference", "between ranks", "verdict",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == [row["program"] for row in found["programs"]]
    assert re.search(r"(?m)^tape_and_assign_sub +eager +w, b +\d\.\de-\d\d +\S+ +equal$", done.output)
    assert re.search(r"(?m)^\d+ equal, .*2 ranks, \d+ s; tensorflow [\d.]+", done.output)


@pytest.mark.long("the programs that are wrong on purpose are noticed")
def test_programs_notice_that_nothing_is_averaged(tmp_path: Path) -> None:
    """Without tfdist the ranks end with different values, and each program must show it."""
    path = tmp_path / "rows.json"
    done = conformance("--only", *CHOSEN, "--without-tfdist", "--json", str(path))
    assert {row["verdict"] for row in json.loads(path.read_text())["programs"]} == {"APART"}, done.output


def test_there_are_enough_programs_and_each_says_what_it_is() -> None:
    listed = run([sys.executable, "scripts/conformance", "--list"], 60)
    rows = [re.split(r"  +", line) for line in listed.output.splitlines()]
    assert listed.code == 0 and {style for _, style, *_ in rows} == {"graph", "function", "eager", "fit"}
    assert len(rows) >= 100 and not [row for row in rows if len(row) != 3 or not row[2].endswith(".")]
    assert not [row for row in rows if row[0].startswith("self_check")]


def test_what_cannot_be_run_is_told() -> None:
    for arguments, told in ((("--only", "no_such"), "there is no such program"), (("--ranks", "5"), "--ranks 5")):
        with subtest(*arguments):
            finished = conformance(*arguments)
            assert finished.code == 2 and told in finished.errors


def test_modules_are_small() -> None:
    for path in (ROOT / "scripts").glob("conformance*/*.py"):
        with subtest(path.name):
            assert len(path.read_text().splitlines()) <= 300
