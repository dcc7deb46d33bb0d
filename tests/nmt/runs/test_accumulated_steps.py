"""``--accumulate_steps``: a step of several batches is the step of one larger batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tfdist
from nmt.checkpoints.checkpoint import latest
from nmt.core.errors import InputError
from nmt.nmt import main
from nmt.runs.tfdist_ranks import Processes
from tests.nmt.runs.test_program import values


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    """Reset the number of accumulated steps after each test."""
    yield
    tfdist.configure(accumulate_steps=1)


def test_a_step_of_two_batches_is_that_of_one(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, number of steps and length of an epoch are the same."""
    said = {}
    for name, flags in (("whole", ["--batch_size=8"]), ("halves", ["--batch_size=4", "--accumulate_steps=2"])):
        out = f"--out_dir={toy.directory}/{name}"
        assert (
            main(
                toy.flags(out, "--dropout=0", "--optimizer=adam", "--learning_rate=0.01", "--weight_decay=0.9", *flags)
            )
            == 0
        )
        said[name] = [line for line in capsys.readouterr().out.splitlines() if "epoch" in line]
    assert said["whole"] == said["halves"] and said["whole"]
    expected = values(str(latest(toy.directory / "whole")))
    found = values(str(latest(toy.directory / "halves")))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_environment_and_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Processes()
    assert (ranks.asked("accumulate_steps", None), ranks.asked("accumulate_steps", 3)) == (1, 3)
    monkeypatch.setenv("TFDIST_ACCUMULATE_STEPS", "4")
    ranks = Processes()
    assert (ranks.asked("accumulate_steps", None), ranks.asked("accumulate_steps", 4)) == (4, 4)
    with pytest.raises(InputError, match="--accumulate_steps=2 contradicts TFDIST_ACCUMULATE_STEPS, where it is 4"):
        ranks.asked("accumulate_steps", 2)
