"""The option ``--every-case``, which ``scripts/test --full`` adds."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--every-case``."""
    parser.addoption(
        "--every-case", action="store_true", help="tests marked long, too, and all multi-rank cases at 2, 3 and 4 ranks"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked long, unless ``--every-case`` is given."""
    if config.getoption("every_case"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
