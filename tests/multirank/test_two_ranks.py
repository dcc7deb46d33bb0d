"""Every case on 2 ranks, except variations of the same mechanism."""

from __future__ import annotations

from tests.multirank.each_case import test_case  # noqa: F401 (a test for each case of these launches)

LAUNCHES = ("2",)
