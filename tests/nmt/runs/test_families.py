"""The whole program with each family of models: training, search, ensembles, alignment; what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nmt.nmt import main

FAMILIES = {
    "transformer": ["--num_units=16", "--num_heads=2", "--norm=pre", "--positions=learned", "--max_positions=60"],
    "convs2s": ["--num_units=16", "--embedding_size=8", "--max_positions=60"],
}
ADAM = ["--optimizer=adam", "--learning_rate=0.01", "--dropout=0.1", "--noevaluate_epochs"]


def flags(toy: Any, family: str, *more: str) -> list[str]:
    return toy.flags("--attention=", f"--model_family={family}", *FAMILIES[family], *more)


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message of a refusal."""
    capsys.readouterr()
    assert main(arguments) == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("nmt: ")]
    return line


@pytest.mark.parametrize(
    "family",
    [f if f == "transformer" else pytest.param(f, marks=pytest.mark.long("the program is the same")) for f in FAMILIES],
)
def test_a_family_trains_and_translates(toy: Any, family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(toy, family, *ADAM, "--num_train_steps=80", "--steps_per_external_eval=40", "--avg_ckpts")) == 0
    perplexities = [float(value) for value in re.findall(r"step \d+ lr .* ppl ([\d.]+) gN", capsys.readouterr().out)]
    assert perplexities[-1] < 0.7 * perplexities[0]
    out, text = toy.directory / "out", toy.directory / "dev.en"
    assert json.loads((out / "hparams").read_text())["model_family"] == family
    several = ",".join(str(path).removesuffix(".index") for path in sorted(out.glob("translate.ckpt-*.index"))[-2:])
    for name, more in {
        "alone": ["--infer_batch_size=1", "--beam_width=3"],
        "together": ["--beam_width=3"],
        "covered": ["--beam_width=3", "--coverage_penalty_weight=0.2"],
        "greedy": ["--infer_mode=greedy"],
        "ensemble": ["--beam_width=3", f"--ckpt={several}"],
    }.items():
        written = toy.directory / name
        arguments = [f"--out_dir={out}", f"--inference_input_file={text}", f"--inference_output_file={written}", *more]
        assert main(arguments) == 0, name
        assert len(written.read_text().splitlines()) == 5 and written.read_text().split(), name
    assert (toy.directory / "alone").read_text() == (toy.directory / "together").read_text()
    # A line as long as the model's positions allow, and a line with one more word.
    long = toy.directory / "long.en"
    for words, code in ((60, 0), (61, 1)):
        long.write_text("a " * words + "\n")
        arguments = [f"--out_dir={out}", f"--inference_input_file={long}", f"--inference_output_file={long}.de"]
        assert main(arguments) == code, words
    message = capsys.readouterr().err
    assert re.search(r"nmt: .*--max_positions.*Cut sentences.*--src_max_len_infer.*\[60\] \[61\]", message), message
    assert main([*arguments, "--src_max_len_infer=50"]) == 0


def test_another_family_does_not_go_on(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    family = "transformer"
    assert main(flags(toy, family, "--num_train_steps=1", "--noevaluate_epochs")) == 0
    for other in {*FAMILIES, "lstm"} - {family}:
        message = told([*flags(toy, family), f"--model_family={other}"], capsys)
        assert f"--model_family={other} contradicts" in message or "would have no effect" in message
    assert "contradicts" in told([*flags(toy, family), "--preset=small", "--share_vocab"], capsys)


def test_a_checkpoint_of_another_family_is_told(toy: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = {family: tmp_path / family for family in FAMILIES}
    for family, path in out.items():
        assert main(flags(toy, family, "--num_train_steps=1", "--noevaluate_epochs", f"--out_dir={path}")) == 0
    other = str(next(out["convs2s"].glob("*.index"))).removesuffix(".index")
    (tmp_path / "convs2s" / "hparams").write_text((tmp_path / "transformer" / "hparams").read_text())
    infer = [f"--inference_input_file={toy.directory}/dev.en", f"--inference_output_file={tmp_path}/x"]
    message = told([f"--ckpt={other}", *infer], capsys)
    assert "translate.ckpt" in message and "layer_0" in message, message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["transformer", "--num_heads=3"], "--num_heads=3 cannot share --num_units=16 evenly"),
        (
            ["transformer", "--tgt_max_len=60"],
            "--tgt_max_len=60 keeps sentences that are longer than --max_positions=60",
        ),
        (["convs2s", "--src_max_len=0"], "--src_max_len=0 keeps sentences that are longer than --max_positions=60"),
        (["convs2s", "--kernel_width=4"], "--kernel_width=4 is not allowed: it must be odd"),
        (["transformer", "--embedding_size=8"], "both must have one width"),
        (["convs2s", "--min_length=60"], "--min_length=60 asks for longer translations than --max_positions=60 allows"),
        (["convs2s", "--tgt_max_len_infer=61"], "--tgt_max_len_infer=61 asks for longer translations"),
        (["transformer", "--dropout=0", "--r_drop=5"], "two passes, which are the same without dropout"),
        (["transformer", "--num_units=16", "--kernel_width=5"], "it needs another --model_family: convs2s"),
        (["transformer", "--unit_type=gru"], "--unit_type=gru would have no effect"),
        (["convs2s", "--num_heads=2"], "--num_heads=2 would have no effect"),
    ],
)
def test_what_does_not_fit_is_refused(
    toy: Any, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in told(flags(toy, *given), capsys)
