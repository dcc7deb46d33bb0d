"""Every program of the law."""

from __future__ import annotations

from tests.multirank.each_case import test_case  # noqa: F401 (a test for each case of these launches)
from tests.multirank.launches import LAW

LAUNCHES = tuple(launch.name for launch in LAW)
