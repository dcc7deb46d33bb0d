"""The option ``--every-case``, which ``scripts/test --full`` adds, and settings of the test processes."""

from __future__ import annotations

import gc
import os

import pytest

from tests.launch import EVERY_CASE

gc.set_threshold(50_000, 20, 100)  # graphs are millions of objects, and collections took a seventh of the time


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
    """Leave out the tests that are marked long, unless ``--every-case`` is given."""
    if config.getoption("every_case"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
