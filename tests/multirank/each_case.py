"""The test of one case in one launch; the cases of a launch share one job.

Each test module here names some LAUNCHES and has this test for all their cases. They are several modules because
``scripts/test`` hands whole modules to its two processes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from tests.cluster.hosts import obstacle
from tests.multirank.launches import PACKAGES, Launch, results

# word in the name of a case or a launch -> package that these cases need, in addition to tfdist's requirements
_NEEDS = {"tf_keras": "tf_keras", **{launch.wanted[0]: launch.name for launch in PACKAGES}}


def test_case(
    launch: Launch,
    case: str,
    selected: dict[Launch, list[str]],
    record_property: Callable[[str, object], None],
) -> None:
    """Pass if the case has raised on no rank."""
    if launch.hosts and obstacle():
        pytest.skip(obstacle())
    for word, needed in _NEEDS.items():
        if word in f"{launch.name} {case}" and importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    cases, endings = results(launch, tuple(selected[launch]))
    if case not in cases:
        pytest.fail(f"{case} did not finish on {launch.ranks} ranks: {endings[case]}")
    record_property("processor_seconds", cases[case]["processor_seconds"])
    if cases[case]["failure"]:
        pytest.fail(cases[case]["failure"])
