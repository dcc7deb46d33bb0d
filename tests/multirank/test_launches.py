"""The list of launches itself."""

from __future__ import annotations

import pytest

from tests.cluster import test_law
from tests.ecosystem import test_packages
from tests.multirank import test_horovod, test_layouts, test_other_ranks, test_two_ranks
from tests.multirank.launches import LAUNCHES


def test_each_launch_is_in_one_module() -> None:
    modules = (test_horovod, test_layouts, test_other_ranks, test_two_ranks, test_law, test_packages)
    assert sorted(name for module in modules for name in module.LAUNCHES) == sorted(LAUNCHES)


@pytest.mark.parametrize("name", LAUNCHES)
def test_beginnings_of_names_are_of_cases(name: str) -> None:
    """A case that has been renamed would be left out without a word."""
    launch = LAUNCHES[name]
    cases = {*launch.cases(full=True), *launch.cases(full=False)}
    for beginning in (*launch.wanted, *launch.more, *launch.long):
        assert any(case.startswith(beginning) for case in cases), beginning
    for beginning in launch.meaningless:
        assert not any(case.startswith(beginning) for case in cases), beginning
