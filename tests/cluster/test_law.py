"""Cases on several hosts: those that communication between machines could change."""

from __future__ import annotations

from tests.multirank.each_case import test_case  # noqa: F401 (a test for each case of these launches)
from tests.multirank.launches import HOSTS

LAUNCHES = tuple(launch.name for launch in HOSTS)
