"""The program, from its command line to its files, in one process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import latest
from nmt.core.lock import hold
from nmt.nmt import main

ROOT = Path(__file__).parents[3]


def tree(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files below a directory, by path."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def values(path: str) -> dict[str, np.ndarray]:
    """Return the variables of a checkpoint, by name."""
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the single message of a run that ends with an error."""
    capsys.readouterr()
    assert main(arguments) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nmt: ")]
    assert len(told) == 1
    return told[0]


def test_train_continue_and_translate(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = toy.directory / "out"
    assert main(toy.flags("--optimizer=adam", "--steps_per_external_eval=4", f"--test_prefix={toy.directory}/dev")) == 0
    text = capsys.readouterr().out
    assert "# ranks 1 x batch 8 = global batch 8 sentences" in text
    for event in (
        "  step 2 lr 1 step-time",
        "  eval dev: perplexity",
        "  bleu test: ",
        "# Final, step 6 lr 1",
    ):
        assert event in text, event
    names = {path.name for path in out.iterdir()}
    assert names >= {
        "hparams",
        "checkpoint",
        "history.jsonl",
        "output_dev",
        "output_test",
        "train_log",
        "best_bleu",
    }
    assert {f"translate.ckpt-{step}.index" for step in (0, 4, 6)} <= names
    saved = json.loads((out / "hparams").read_text())
    assert (saved["num_units"], saved["src_vocab_size"], saved["optimizer"]) == (8, 10, "adam")
    assert len((out / "output_dev").read_text().splitlines()) == 5

    # To continue, only the directory and the new end are needed.
    assert main([f"--out_dir={out}", "--num_train_steps=9"]) == 0
    assert "continuing after step 6" in capsys.readouterr().out
    straight = toy.directory / "straight"
    assert main(toy.flags("--optimizer=adam", f"--out_dir={straight}", "--num_train_steps=9")) == 0
    continued, whole = values(str(latest(out))), values(str(latest(straight)))
    assert whole["global_step"].dtype == np.int32
    assert whole["global_step"] == 9
    for name, value in whole.items():
        np.testing.assert_allclose(continued[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    history = map(json.loads, (out / "history.jsonl").read_text().splitlines())
    steps = [line["step"] for line in history if "train_ppl" in line]  # the end also evaluates the best model
    assert steps == [2, 4, 6, 8]

    (toy.directory / "input").write_text("a b c\n\ng\n")
    capsys.readouterr()
    command = [f"--ckpt={latest(straight)}", f"--inference_input_file={toy.directory}/input"]
    assert main([*command, f"--inference_output_file={toy.directory}/one"]) == 0
    assert "# 3 lines translated" in capsys.readouterr().out
    lines = (toy.directory / "one").read_text().split("\n")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""
    command = [f"--out_dir={straight}", f"--inference_input_file={toy.directory}/input", "--beam_width=1"]
    assert main([*command, f"--inference_output_file={toy.directory}/two"]) == 0
    assert (toy.directory / "two").read_text().split("\n") == lines
    infer = [f"--inference_input_file={toy.directory}/input", f"--inference_output_file={toy.directory}/three"]
    several = f"--ckpt={latest(straight)},{straight}/translate.ckpt-9"
    assert main([several, *infer]) == 0
    assert f"translated by {several.removeprefix('--ckpt=')} into" in capsys.readouterr().out
    assert (toy.directory / "three").read_text().split("\n") == lines
    (toy.directory / "bare").mkdir()
    for file in Path(straight).glob("translate.ckpt-9.*"):
        shutil.copy(file, toy.directory / "bare")
    told = refused([f"{several},{toy.directory}/bare/translate.ckpt-9", *infer], capsys)
    assert "there is no hparams in the directory of" in told and "Copy the file from the out_dir" in told
    # An ensemble may mix methods of training.
    (out / "hparams").write_text((out / "hparams").read_text().replace('"sync": "gradients"', '"sync": "bmuf"'))
    assert main([f"--ckpt={latest(straight)},{latest(out)}", *infer]) == 0
    assert "names nothing between two commas" in refused([f"--ckpt={latest(straight)},", *infer], capsys)
    (out / "hparams").write_text((out / "hparams").read_text().replace('"forget_bias": 1.0', '"forget_bias": 2.0'))
    told = refused([f"--ckpt={latest(straight)},{latest(out)}", *infer], capsys)
    assert "forget_bias is 1.0 in the hparams of" in told and "leave one out" in told
    words = json.loads((out / "hparams").read_text())["src_vocab_sha256"]
    (out / "hparams").write_text((out / "hparams").read_text().replace(words, "0" * 64))
    told = refused([f"--ckpt={latest(straight)},{latest(out)}", *infer], capsys)
    assert "was trained with another vocabulary than" in told and "(see src_vocab_sha256 in" in told


def test_damage_and_contradictions_are_told(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = toy.directory / "out"
    assert main(toy.flags("--num_train_steps=1")) == 0
    assert "--num_units=9 contradicts" in refused(toy.flags("--num_units=9"), capsys)
    vocabulary = toy.directory / "vocab.de"
    words = vocabulary.read_text()
    vocabulary.write_text(words + "new\n")
    assert f"{vocabulary} is not the vocabulary" in refused(toy.flags(), capsys)
    vocabulary.write_text(words)
    data = next(out.glob("translate.ckpt-1.data-*"))
    data.write_bytes(data.read_bytes()[:500])
    before = tree(out)
    assert "translate.ckpt-1 is damaged" in refused(toy.flags(), capsys)
    output = toy.directory / "translation"
    infer = [f"--inference_input_file={toy.directory}/dev.en", f"--inference_output_file={output}"]
    assert "translate.ckpt-1 is damaged" in refused([f"--out_dir={out}", *infer], capsys)
    assert "ckpt-7.index is missing" in refused([f"--ckpt={out}/translate.ckpt-7", *infer], capsys)
    assert not output.exists()
    (out / "hparams").write_text("{")
    before[str(out / "hparams")] = b"{"
    assert "hparams is damaged" in refused(toy.flags(), capsys)
    assert tree(out) == before


def test_diverged_training_saves_nothing(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flags = toy.flags("--learning_rate=1e38", "--max_gradient_norm=1e30", "--steps_per_stats=3")
    assert "diverged" in refused(flags, capsys)
    assert latest(toy.directory / "out") == str(toy.directory / "out" / "translate.ckpt-0")


def test_a_run_that_diverges_goes_back(
    toy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run rewinds, then equals a run with half the rate, bit for bit, also when it is stopped and continued."""
    found = ["it rises"]
    monkeypatch.setattr("nmt.train.divergence.Rise.see", lambda self, step, loss: found.pop() if found else "")
    assert main(toy.flags("--divergence=rewind")) == 0
    text = capsys.readouterr().out
    assert "# training diverged: it rises; gradient norm " in text
    assert "Going back to step 0 with 1/2 of the learning rate" in text and "learning rate 0.5 (" in text
    assert text.count("earning curve: ") == 2  # each attempt has closed its outputs
    out, other = toy.directory / "out", toy.directory / "other"
    assert main(toy.flags("--learning_rate=0.5", f"--out_dir={other}")) == 0
    assert main(toy.flags("--num_train_steps=8")) == 0
    assert "learning rate 0.5 (" in capsys.readouterr().out
    assert main(toy.flags("--learning_rate=0.5", f"--out_dir={other}", "--num_train_steps=8")) == 0
    ours, theirs = values(f"{out}/translate.ckpt-8"), values(f"{other}/translate.ckpt-8")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], name)


@pytest.mark.long("test_a_run_that_diverges_goes_back")
def test_a_divergence_that_no_checkpoint_was_before(
    toy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(toy.flags("--num_train_steps=2", "--num_keep_ckpts=1")) == 0
    before = tree(toy.directory / "out")
    monkeypatch.setattr("nmt.train.divergence.Rise.see", lambda self, step, loss: "it rises")
    monkeypatch.setattr("nmt.train.divergence.Rise.good_step", 1, raising=False)
    monkeypatch.setattr("nmt.train.divergence.Rise.__init__", lambda self, first_step: None)
    told = refused(toy.flags("--divergence=rewind", "--num_keep_ckpts=1"), capsys)
    assert "No checkpoint from step 1 or before is left" in told and "--num_keep_ckpts" in told
    kept = tree(toy.directory / "out")
    assert all(kept[name] == data for name, data in before.items() if "translate.ckpt" in name)


@pytest.mark.parametrize(
    ("file", "content", "flags", "message"),
    [
        ("train.en", None, [], "train.en"),
        ("train.en", b"", [], "train.en"),
        ("train.de", b"A\nB\n", [], "37"),
        ("train.en", b"a\n" * 36 + b"\xff\n", [], "train.en, line 37: not UTF-8"),
        ("train.en", b" \n" * 37, [], "train.en"),
        ("dev.de", None, [], "dev.de"),
        ("dev.de", b"A\n", [], "dev.de"),
        ("vocab.de", b"A\nB\n</s>\n", [], "'</s>' in line 3"),
        ("vocab.de", b"A\nB\nC\n", ["--nocheck_special_token"], "has no line '<s>'"),
        ("out", b"a file", [], "out"),
        ("x", b"", ["--batch_size=0"], "--batch_size=0"),
        ("x", b"", ["--encoder_type=bi"], "--encoder_type=bi"),
        ("x", b"", ["--num_gpu=1"], "num_gpus"),
        ("x", b"{", ["--hparams_path=x"], "--hparams_path=x cannot be read"),
        ("x", b"", ["--num_unit=1"], "num_units"),
    ],
)
def test_bad_input(
    toy: Any,
    capsys: pytest.CaptureFixture[str],
    file: str,
    content: bytes | None,
    flags: list[str],
    message: str,
) -> None:
    path = toy.directory / file
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    before = tree(toy.directory)
    assert message in refused(toy.flags(*flags), capsys)
    assert tree(toy.directory) == before


def test_inference_needs_a_checkpoint(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    infer = [f"--inference_input_file={toy.directory}/dev.en", f"--inference_output_file={toy.directory}/o"]
    assert "out does not exist: correct the path" in refused(toy.flags(*infer), capsys)
    assert not (toy.directory / "out").exists()
    (toy.directory / "out").mkdir()
    assert "has no checkpoint" in refused(toy.flags(*infer), capsys)


def test_a_text_that_does_not_fit_the_model_is_told(
    toy: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(toy.flags("--num_train_steps=1")) == 0
    text, output = toy.directory / "input", toy.directory / "output"
    infer = [f"--out_dir={toy.directory}/out", f"--inference_input_file={text}", f"--inference_output_file={output}"]
    text.write_text("a b c d e f g a B\n")
    capsys.readouterr()
    assert main(infer) == 0
    told = capsys.readouterr().out
    assert "# warning: " in told and "11.11 % of its tokens are not in" in told and "with the same capitals" in told
    text.write_text("A b C\n")
    assert "66.67 % of its tokens are not in" in refused(infer, capsys)
    assert main([*infer, "--max_unknown_share=0.7"]) == 0
    text.write_text("a b c\n")
    capsys.readouterr()
    assert main(infer) == 0 and "warning" not in capsys.readouterr().out
    told = refused([*infer, "--override_loaded_hparams"], capsys)
    assert "--override_loaded_hparams ignores the options" in told

    hparams = toy.directory / "out" / "hparams"  # as if training had used a relative path
    hparams.write_text(hparams.read_text().replace(f"{toy.directory}/vocab", "vocab"))
    assert "relative to the directory where its training was started" in refused(infer, capsys)
    monkeypatch.chdir(toy.directory)
    assert main(infer) == 0


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--num_units: " in capsys.readouterr().out


def test_exit_code_and_message_of_the_process() -> None:
    command = [sys.executable, "-m", "nmt.nmt", "--num_unit=3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.count("num_units") == 1
    assert "Traceback" not in done.stderr


def test_contradictory_output_flags(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = toy.directory / "dev.en"
    before = text.read_bytes()
    assert main(toy.flags("--num_train_steps=1")) == 0
    out = toy.directory / "out"
    same = [f"--out_dir={out}", f"--inference_input_file={text}", f"--inference_output_file={text}"]
    assert "is also an input" in refused(same, capsys)
    assert text.read_bytes() == before
    assert "needs --inference_input_file" in refused([f"--out_dir={out}", "--inference_output_file=x"], capsys)
    scaling = toy.flags("--learning_rate_scaling=linear", "--warmup_scheme=t2t", "--warmup_steps=3")
    assert "--warmup_scheme=t2t contradicts" in refused(scaling, capsys)
    assert "more than 0, and finite" in refused(toy.flags("--max_gradient_norm=inf"), capsys)


def test_nothing_left_to_train(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(toy.flags("--num_train_steps=2")) == 0
    before = {n: v for n, v in tree(toy.directory / "out").items() if "ckpt" in n or "output" in n}
    capsys.readouterr()
    assert main([f"--out_dir={toy.directory}/out"]) == 0
    assert "# Step 2 is done and no step is left" in capsys.readouterr().out
    assert {n: v for n, v in tree(toy.directory / "out").items() if n in before} == before


def test_a_damaged_record_of_the_best_is_told_before_logs_are_begun(
    toy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = toy.directory / "out"
    out.mkdir()
    (out / "best_bleu").write_text("")
    assert "best_bleu" in refused(toy.flags(), capsys)
    assert [path.name for path in out.iterdir()] == ["best_bleu"]
    (out / "best_bleu").unlink()
    (out / "best_bleu").mkdir()
    (out / "best_bleu" / "best.json").write_text("{}")
    (out / "history.jsonl").write_text('{"step": 5}\n')
    before = tree(out)
    assert "best.json is damaged" in refused(toy.flags(), capsys)
    assert tree(out) == before


def test_a_full_disk_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: Any, ranks: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nmt.nmt.run", run)
    told = "standard output: cannot be written (No space left on device); free or choose"
    assert told in refused([], capsys)


def test_two_runs_in_one_directory(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = toy.directory / "out"
    with hold(out / "run.lock", "", ""):
        before = tree(out)
        assert f"{out} is in use by process {os.getpid()} on " in refused(toy.flags(), capsys)
        assert tree(out) == before
    assert not out.exists()


def test_what_a_run_began_with_is_compared(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(toy.flags("--num_train_steps=1")) == 0
    for name in ("train.en", "dev.de"):  # the sizes stay equal
        path = toy.directory / name
        path.write_text(path.read_text()[:-2] + {"train.en": "x\n", "dev.de": "X\n"}[name])
    capsys.readouterr()
    assert main(toy.flags("--num_train_steps=2")) == 0
    said = capsys.readouterr().out
    assert f"# {toy.directory}/train.en changed since step 1: training continues with epoch 2\n" in said
    assert f"# {toy.directory}/dev.de has changed since this run was last started: earlier" in said
    assert main(toy.flags("--num_train_steps=3")) == 0
    assert " changed since" not in capsys.readouterr().out

    hparams = toy.directory / "out" / "hparams"
    kept = hparams.rename(toy.directory / "kept")
    before = tree(toy.directory)
    assert f"{hparams} is missing, but {toy.directory}/out/translate.ckpt-3 exists" in refused(toy.flags(), capsys)
    assert tree(toy.directory) == before
    assert main(toy.flags("--num_train_steps=3", "--override_loaded_hparams")) == 0
    assert hparams.exists() and kept.exists()


@pytest.mark.pictures
def test_a_picture_of_attention_for_tensorboard(toy: Any) -> None:
    assert main(toy.flags("--num_train_steps=1")) == 0
    (events,) = (toy.directory / "out" / "train_log").iterdir()
    summaries = [v for e in tf.compat.v1.train.summary_iterator(str(events)) for v in e.summary.value]
    assert any(v.tag == "attention_images" and v.image.encoded_image_string for v in summaries)


def test_a_checkpoint_in_the_working_directory(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(toy.flags("--num_train_steps=1")) == 0
    monkeypatch.chdir(toy.directory / "out")
    translate = [f"--inference_input_file={toy.directory}/dev.en", f"--inference_output_file={toy.directory}/x"]
    assert main(["--ckpt=translate.ckpt-1", *translate]) == 0
