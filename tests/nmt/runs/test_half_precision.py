"""``--precision`` and ``--loss_scale``: products in half precision; updates that overflow are skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tfdist
from nmt.checkpoints.checkpoint import latest
from nmt.core.errors import InputError
from nmt.nmt import main
from nmt.runs.tfdist_ranks import Processes
from tests.nmt.runs.test_program import refused, values


def trained(toy: Any, name: str, *flags: str) -> dict[str, np.ndarray]:
    assert main(toy.flags(f"--out_dir={toy.directory}/{name}", *flags)) == 0
    return values(str(latest(toy.directory / name)))


@pytest.mark.parametrize(
    "flags",
    [
        ["--precision=bfloat16"],
        pytest.param(
            ["--precision=float16", "--loss_scale=1024"], marks=pytest.mark.long("test_updates_that_overflow")
        ),
    ],
)
def test_half_precision_trains_nearly_alike(toy: Any, flags: list[str]) -> None:
    whole, half = trained(toy, "whole"), trained(toy, "half", *flags)
    assert half.keys() - whole.keys() == ({"loss_scale_state"} if len(flags) > 1 else set())
    for name, value in whole.items():
        np.testing.assert_allclose(half[name], value, atol=0.02, err_msg=name)
    assert any(np.abs(half[name] - value).max() > 1e-6 for name, value in whole.items())


def test_updates_that_overflow_are_left_out(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Skipped updates change no weight but count as steps; a run with a smaller scale continues after them."""
    flags = "--steps_per_stats=1", "--loss_scale=1e39", "--num_train_steps=4"
    found = trained(toy, "all", *flags)
    assert "ppl nan" in capsys.readouterr().out
    assert found["global_step"] == 0 and found["loss_scale_state"][3] == 4  # float32 cannot hold 1e39
    start = values(f"{toy.directory}/all/translate.ckpt-0")
    assert all(np.array_equal(start[name], value) for name, value in found.items() if "loss_scale" not in name)
    tfdist.configure(loss_scale="none")
    on = trained(toy, "all", "--loss_scale=8", "--num_train_steps=6")
    assert on["global_step"] == 2 and latest(toy.directory / "all") == f"{toy.directory}/all/translate.ckpt-6"


def test_mistakes(toy: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "loss_scale='dynamic' is out of range" in refused(toy.flags("--loss_scale=dynamic"), capsys)
    monkeypatch.setenv("TFDIST_LOSS_SCALE", "window")
    ranks = Processes()
    assert ranks.asked("loss_scale", None) == "window"
    with pytest.raises(InputError, match="--loss_scale=logmax contradicts TFDIST_LOSS_SCALE, where it is window"):
        ranks.asked("loss_scale", "logmax")
    monkeypatch.delenv("TFDIST_LOSS_SCALE")
    for variable, value, flag in (("MIXED_PRECISION", "bf16", "precision=float32"), ("SYNC", "bmuf", "sync=gradients")):
        monkeypatch.setenv(f"TFDIST_{variable}", f"{value}:steps=4" if variable == "SYNC" else value)
        told = refused(toy.flags(), capsys)
        assert f"--{flag} contradicts TFDIST_{variable}, where it is {value}" in told
        monkeypatch.delenv(f"TFDIST_{variable}")
