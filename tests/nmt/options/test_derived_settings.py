"""From options to the parts that they are for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nmt.core.errors import InputError
from nmt.model.session import multiplies_in_bfloat16, session_config
from nmt.options import derived_settings
from nmt.options.option import make
from nmt.options.resolve import resolve
from nmt.runs.training_run import opening_lines
from nmt.train.feed import Feed, FeedSettings
from tests.launch import run
from tests.nmt.core.thread_ranks import outcomes
from tests.nmt.options.test_configuration import NEEDED
from tests.nmt.train.test_schedule import rates


@pytest.mark.parametrize(
    ("scaling", "scheme", "size", "accumulated", "expected"),
    [
        ("none", "t2t", 4, 1, [0.02, 0.2, 2, 2]),
        ("none", "linear", 4, 2, [0, 1, 2, 2]),
        ("linear", None, 4, 1, [2, 5, 8, 8]),
        ("sqrt", "linear", 4, 1, [2, 3, 4, 4]),
        ("sqrt", "linear", 2, 2, [2, 3, 4, 4]),  # so many sentences make a step
        ("linear", None, 1, 1, [0, 1, 2, 2]),  # alone: nothing to scale, and yet a warm-up
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
    schedule = derived_settings.optimization(config, size).schedule
    assert rates(schedule, [0, 5, 10, 99]) == pytest.approx(expected)


def test_noam_takes_the_model_and_the_ranks() -> None:
    """sqrt(4) * 3 * 16 ** -0.5 * s / 4 ** 1.5, and 1 / sqrt(s) of that after step 4."""
    given = {"decay_scheme": "noam", "learning_rate": 3.0, "num_units": 16, "warmup_steps": 4}
    config = resolve(NEEDED | given | {"learning_rate_scaling": "sqrt"})
    schedule = derived_settings.optimization(config, 4).schedule
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
    feed = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, make(FeedSettings, config), 0, 4)
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


def test_bfloat16_is_said_to_have_no_effect_where_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(NEEDED | {"precision": "bfloat16"})
    found = iter([True, False, False])  # as each rank finds
    monkeypatch.setattr(derived_settings, "multiplies_in_bfloat16", lambda _: next(found))
    monkeypatch.setattr(derived_settings, "has_bfloat16_instructions", lambda: True)
    told = outcomes(3, lambda ranks: derived_settings.precision_notices(config, ranks))
    assert all(one == told[0] for one in told)
    assert told[0][0].startswith("--precision=bfloat16 has no effect on 2 of 3 rank(s), which multiply in float32")
    monkeypatch.setattr(derived_settings, "multiplies_in_bfloat16", lambda _: True)
    assert outcomes(2, lambda ranks: derived_settings.precision_notices(config, ranks)) == [[], []]
    monkeypatch.setattr(derived_settings, "has_bfloat16_instructions", lambda: False)
    slow = outcomes(2, lambda ranks: derived_settings.precision_notices(config, ranks))
    assert slow[0] == slow[1]
    assert [one[:68] for one in slow[0]] == ["--precision=bfloat16 is likely slower than float32 on 2 of 2 rank(s)"]
    assert outcomes(2, lambda ranks: derived_settings.precision_notices(resolve(NEEDED), ranks)) == [[], []]


def test_what_products_are_made_of_is_found_out() -> None:
    assert not multiplies_in_bfloat16(session_config("float32"))
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        assert multiplies_in_bfloat16(session_config("bfloat16"))
    script = "from nmt.model.session import *; print(multiplies_in_bfloat16(session_config('bfloat16')))"
    done = run([sys.executable, "-c", script], 60, {"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert done.output == "False\n", done.errors
