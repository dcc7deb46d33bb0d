"""Cases and launches are made into tests as those of multirank/ are."""

from __future__ import annotations

from tests.multirank.conftest import pytest_generate_tests, selected

__all__ = ["pytest_generate_tests", "selected"]
