"""The schedule that options ask for."""

from __future__ import annotations

from typing import Any

import pytest

from nmt.core.errors import InputError
from nmt.options.resolve import resolve
from nmt.runs.training_run import opening_lines
from nmt.train.feed import Feed
from nmt.train.schedule import Schedule
from tests.nmt.options.test_configuration import NEEDED
from tests.nmt.train.test_schedule import rates


@pytest.mark.parametrize(
    ("scaling", "scheme", "size", "accumulated", "expected"),
    [
        ("none", "t2t", 4, 1, [0.02, 0.2, 2, 2]),
        ("none", "linear", 4, 2, [0, 1, 2, 2]),
        ("linear", None, 4, 1, [2, 5, 8, 8]),
        ("sqrt", "linear", 4, 1, [2, 3, 4, 4]),
        ("sqrt", "linear", 2, 2, [2, 3, 4, 4]),  # the same number of sentences in a step
        ("linear", None, 1, 1, [0, 1, 2, 2]),  # one rank: no scaling, but a warm-up
    ],
)
def test_scaled_rates_and_their_warmup(
    scaling: str, scheme: str | None, size: int, accumulated: int, expected: list[float]
) -> None:
    given = {
        "learning_rate": 2.0,
        "learning_rate_scaling": scaling,
        "warmup_steps": 10,
        "accumulate_steps": accumulated,
    }
    config = resolve(NEEDED | given | ({"warmup_scheme": scheme} if scheme else {}))
    schedule = Schedule.of(config, size)
    assert rates(schedule, [0, 5, 10, 99]) == pytest.approx(expected)


def test_noam_takes_the_model_and_the_ranks() -> None:
    """The rate at step s is sqrt(4) * 3 * 16 ** -0.5 * s / 4 ** 1.5; after step 4 it falls as 1 / sqrt(s)."""
    given = {"decay_scheme": "noam", "learning_rate": 3.0, "num_units": 16, "warmup_steps": 4}
    config = resolve(NEEDED | given | {"learning_rate_scaling": "sqrt"})
    schedule = Schedule.of(config, 4)
    assert rates(schedule, [0, 3, 15]) == pytest.approx([1.5 / 8, 1.5 / 2, 1.5 / 4])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decay_scheme": "noam"}, "--decay_scheme=noam needs .* --warmup_steps"),
        ({"decay_scheme": "inverse_sqrt"}, "--decay_scheme=inverse_sqrt needs .* --warmup_steps"),
        ({"plateau_patience": 3}, "--plateau_patience=3 would have no effect: it needs --decay_scheme=plateau"),
        ({"decay_scheme": "noam", "warmup_steps": 4, "warmup_scheme": "t2t"}, "--warmup_scheme=t2t contradicts .*noam"),
    ],
)
def test_decays_are_refused_without_what_they_need(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(NEEDED | given)


def test_the_log_tells_rate_and_warmup(toy: Any) -> None:
    config = resolve(NEEDED | {"learning_rate_scaling": "sqrt", "warmup_steps": 10})
    feed = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, config, 0, 4)
    told = opening_lines(config, feed, 0, 4, 0)
    assert "# sgd, learning rate 2 (scaling: sqrt), linear warm-up over 10 steps" in told
    config = resolve(NEEDED | {"decay_scheme": "noam", "num_units": 16, "warmup_steps": 4})
    assert "# sgd, learning rate 1 (scaling: none), noam, at most 0.125 at step 4" in opening_lines(
        config, feed, 0, 4, 0
    )
    for scheme, decay in (
        ("inverse_sqrt", "inverse_sqrt, at most that at step 4"),
        ("plateau", "t2t warm-up over 4 steps, times 0.5 after 2 evaluation(s) without a better dev bleu"),
    ):
        config = resolve(NEEDED | {"decay_scheme": scheme, "warmup_steps": 4})
        assert f"# sgd, learning rate 1 (scaling: none), {decay}" in opening_lines(config, feed, 0, 4, 0)
    config = resolve(NEEDED)
    assert "# sgd, learning rate 1 (scaling: none), no warm-up" in opening_lines(config, feed, 0, 4, 0)
