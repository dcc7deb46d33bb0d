"""On 1, 3 and 4 ranks: the cases that could depend on the number of ranks."""

from __future__ import annotations

from tests.multirank.each_case import test_case  # noqa: F401 (a test for each case of these launches)

LAUNCHES = ("3", "4", "1")
