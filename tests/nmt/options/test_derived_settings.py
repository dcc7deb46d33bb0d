"""From options to the parts that they are for."""

from __future__ import annotations

from typing import Any

import pytest

from nmt.options import derived_settings
from nmt.options.option import make
from nmt.options.resolve import resolve
from nmt.runs.training_run import opening_lines
from nmt.train.feed import Feed, FeedSettings
from tests.nmt.options.test_configuration import NEEDED
from tests.nmt.train.test_schedule import rates


@pytest.mark.parametrize(
    ("scaling", "scheme", "size", "expected"),
    [
        ("none", "t2t", 4, [0.02, 0.2, 2, 2]),
        ("none", "linear", 4, [0, 1, 2, 2]),
        ("linear", None, 4, [2, 5, 8, 8]),
        ("sqrt", "linear", 4, [2, 3, 4, 4]),
        ("linear", None, 1, [0, 1, 2, 2]),  # alone: nothing to scale, and yet a warm-up
    ],
)
def test_scaled_rates_and_their_warmup(scaling: str, scheme: str | None, size: int, expected: list[float]) -> None:
    given = {"learning_rate": 2.0, "learning_rate_scaling": scaling, "warmup_steps": 10}
    config = resolve(NEEDED | given | ({"warmup_scheme": scheme} if scheme else {}))
    schedule = derived_settings.optimization(config, size).schedule
    assert rates(schedule, [0, 5, 10, 99]) == pytest.approx(expected)


def test_the_log_tells_rate_and_warmup(toy: Any) -> None:
    config = resolve(NEEDED | {"learning_rate_scaling": "sqrt", "warmup_steps": 10})
    feed = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, make(FeedSettings, config), 0, 4)
    told = opening_lines(config, feed, 0, 4)
    assert "# sgd, learning rate 2 (scaling: sqrt), linear warm-up over 10 steps" in told
    config = resolve(NEEDED)
    assert "# sgd, learning rate 1 (scaling: none), no warm-up" in opening_lines(config, feed, 0, 4)
