"""The steps in which ranks compare their variables."""

from __future__ import annotations

from tfdist.training.replica_check import LARGEST, Schedule, wanted


def compared(setting: str, steps: int, powers: list[int]) -> list[int]:
    """Return the steps with a comparison; each one compares the values that the previous step has left."""
    schedule, found = Schedule(setting), []
    for step in range(1, steps + 1):
        if schedule.due(step):
            found.append(step)
            schedule.compared(step, powers)
    return found


def test_soon_at_first() -> None:
    assert compared("auto", 200, [LARGEST, LARGEST]) == [2, 3, 5, 9, 17, 33, 65, 129]  # after 1, 2, 4, 8, …


def test_then_as_often_as_the_costs_allow_the_slowest() -> None:
    assert compared("auto", 60, [2, 4]) == [2, 3, 5, 9, 17, 33, 49]
    assert compared("auto", 20, [0, 0]) == list(range(2, 21))


def test_each_so_many_steps() -> None:
    assert compared("7", 30, [0, 0]) == [8, 15, 22, 29]


def test_what_it_costs() -> None:
    for seconds, step_seconds in ((0.1, 0.5), (1e-4, 1e-3), (3.0, 0.01)):
        steps = 1 << wanted(seconds, step_seconds)
        assert seconds / steps < 0.005 * step_seconds <= seconds / (steps / 4)
    assert wanted(1e-6, 1.0) == 0
    assert wanted(1.0, 0.0) == LARGEST
