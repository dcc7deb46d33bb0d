"""Launches name existing cases; if a case ends its job, the cases after it run in another job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.launch import Finished
from tests.multirank import launches
from tests.multirank.launches import LAUNCHES, Launch, case_names, results


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Return the cases of each job, in order; a case with "ends" in its name ends its job."""
    jobs: list[list[str]] = []

    def job(ranks: int, arguments: Sequence[str], timeout: float, settings: Any) -> Finished:
        report, cases = Path(arguments[2]), list(arguments[3:])
        jobs.append(cases)
        ends = next((number for number, case in enumerate(cases) if "ends" in case), len(cases))
        report.write_text("".join(json.dumps({"case": case}) + "\n" for case in cases[:ends]))
        code = None if "hangs" in "".join(cases[ends:][:1]) else int(ends < len(cases))
        return Finished(code, "output", "errors", 1.0)

    monkeypatch.setattr(launches, "mpirun", job)
    monkeypatch.setattr(launches, "LOGS", tmp_path)
    launches.results.cache_clear()
    return jobs


LAUNCH = Launch("a test", 2, ())


@pytest.mark.parametrize("name", LAUNCHES)
def test_each_beginning_is_that_of_a_case(name: str) -> None:
    """A renamed case must not leave a launch, or return to it, unnoticed."""
    launch = LAUNCHES[name]
    beginnings = launch.wanted + launch.long + launch.meaningless + launch.more
    assert not [one for one in beginnings if not any(case.startswith(one) for case in case_names())]


def test_those_behind_it_get_another_job(begun: list[list[str]]) -> None:
    reported, endings = results(LAUNCH, ("a", "b ends", "c ends", "d"))
    assert list(reported) == ["a", "d"]
    assert list(endings) == ["b ends", "c ends"]
    assert begun == [["a", "b ends", "c ends", "d"], ["c ends", "d"], ["d"]]


def test_not_for_ever(begun: list[list[str]]) -> None:
    reported, endings = results(LAUNCH, tuple(f"{number} ends" for number in range(9)))
    assert not reported
    assert len(begun) == 5
    assert [ending.startswith("it was not begun") for ending in endings.values()] == [False] * 5 + [True] * 4


def test_not_after_one_that_had_its_time(begun: list[list[str]]) -> None:
    reported, endings = results(LAUNCH, ("a", "b ends, it hangs", "c"))
    assert list(reported) == ["a"]
    assert endings["c"].startswith("it was not begun")
    assert len(begun) == 1
