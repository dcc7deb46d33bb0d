"""The command that chooses the length penalty."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nmt.nmt import main as nmt
from nmt.tune_search import main


@pytest.mark.long("a training, and a search for each weight")
def test_the_best_of_the_table_is_named(
    toy: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line has the score of translations with that weight; an error is reported in one message."""
    training = [
        "--precision=bfloat16",
        "--num_train_steps=30",
        "--noevaluate_epochs",
        "--optimizer=adam",
        "--learning_rate=0.02",
    ]
    assert nmt(toy.flags("--beam_width=3", "--subword_option=bpe", *training)) == 0
    out, dev = toy.directory / "out", toy.directory / "dev"
    capsys.readouterr()
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("nmt.tune_search.Processes.configure", lambda _, **given: asked.append(given))
    assert main(["tune_search", f"--model={out}", "--weights=0,-5,5"]) == 0
    assert asked == [{"mixed_precision": "bf16"}]  # the run's precision; the mock keeps this process unchanged
    said = capsys.readouterr().out
    assert f"{dev}, beam 3, nrefs:1|" in said
    table = {weight: float(bleu) for weight, bleu in re.findall(r"^ +(\S+) +([\d.]+) +[\d.]+$", said, re.MULTILINE)}
    assert list(table) == ["0", "-5", "5"] and len(set(table.values())) > 1
    assert main(["tune_search", f"--model={out}", "--weights=1,nan"]) == 1
    assert "--weights=nan is not allowed" in capsys.readouterr().err
    best = said.splitlines()[-1].removeprefix("--length_penalty_weight=")
    assert table[best] == max(table.values())
    assert main(["tune_search", f"--model={out}", "--weights=0", "--beam_width=2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "--beam_width=2 --length_penalty_weight=0"
    infer = [
        "--precision=float32",
        f"--out_dir={out}",
        f"--inference_input_file={dev}.en",
        f"--inference_output_file={toy.directory}/found",
    ]
    assert nmt([*infer, f"--inference_ref_file={dev}.de", f"--length_penalty_weight={best}"]) == 0
    assert f"sacrebleu: {table[best]:.2f} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--weights=0,x"], "--weights=0,x: give numbers separated by commas"),
        (["--beam_width=0"], "--beam_width=0 is not allowed"),
        ([], "has no checkpoint: give the out_dir of a training"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune_search", f"--model={tmp_path}", *flags]) == 1
    told = capsys.readouterr().err
    assert told.startswith("tune_search: ") and message in told
