"""What ``scripts/test --full`` adds."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Before there are tests to choose from."""
    parser.addoption("--every-case", action="store_true", help="all multi-rank cases at 2, 3 and 4 ranks")
