"""The option ``--every-case``, which ``scripts/test --full`` adds, the cases of launches, and settings of processes."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from tests.launch import EVERY_CASE
from tests.multirank.launches import LAUNCHES, Launch

_COMPUTES = {"law", "multirank", "nmt"}  # folders
# As in startup/sitecustomize.py: graphs are millions of objects, and collections took a seventh of the time.
gc.set_threshold(50_000, 20, 100)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a check in the background ignores it, and so do its children


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--every-case``."""
    parser.addoption(
        "--every-case", action="store_true", help="tests marked long, too, and more multi-rank cases on more ranks"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Pass ``--every-case`` on to jobs."""
    if config.getoption("every_case"):
        os.environ[EVERY_CASE] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked long, unless ``--every-case`` is given, and mix what computes and waits."""
    if not config.getoption("every_case"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    items[:] = mixed(items)


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay, out of all later collections of garbage."""
    gc.collect()
    gc.freeze()


def mixed(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with modules that use processors alternating with modules whose tests mostly wait.

    The workers of ``scripts/test`` take modules in this order. Two modules that compute slow each other down, while two
    modules that wait leave processors idle.
    """
    modules = itertools.groupby(items, lambda item: item.path)
    groups: dict[bool, list[list[pytest.Item]]] = {True: [], False: []}
    for path, tests in modules:
        groups[bool(_COMPUTES & set(path.parts))].append(list(tests))
    placed = [(number / len(group), tests) for group in groups.values() for number, tests in enumerate(group)]
    return [test for _, tests in sorted(placed, key=lambda one: one[0]) for test in tests]


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
