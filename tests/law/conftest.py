"""Hooks that make cases and launches into tests, as in multirank/."""

from __future__ import annotations

from tests.multirank.conftest import pytest_generate_tests, selected

__all__ = ["pytest_generate_tests", "selected"]
