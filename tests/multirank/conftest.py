"""Selection of the cases of each launch: those that the launch could change and that were requested."""

from __future__ import annotations

from typing import Any

import pytest

from tests.multirank.launches import LAUNCHES, Launch


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each case of the launches that a module names."""
    if "launch" in metafunc.fixturenames:
        full = metafunc.config.getoption("every_case")
        cases = [(LAUNCHES[name], case) for name in metafunc.module.LAUNCHES for case in LAUNCHES[name].cases(full)]
        metafunc.parametrize(("launch", "case"), cases, ids=[f"{launch.name}-{case}" for launch, case in cases])


@pytest.fixture(scope="session")
def selected(request: pytest.FixtureRequest) -> dict[Launch, list[str]]:
    """Return the requested cases of each launch, so that a single case runs fast."""
    found: dict[Launch, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_case":
            parameters: dict[str, Any] = dict(item.callspec.params)
            found.setdefault(parameters["launch"], []).append(parameters["case"])
    return found
