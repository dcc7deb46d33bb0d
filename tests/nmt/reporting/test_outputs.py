"""The output of a run: files in out_dir and lines on the screen."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from nmt.core.errors import InputError
from nmt.reporting.heatmap import heatmap
from nmt.reporting.outputs import Outputs, RunOutputs, Stats

STATS = Stats(
    step=200,
    learning_rate=0.25,
    step_seconds=0.123,
    words_per_second=8123.4,
    perplexity=12.345,
    grad_norm=3.456,
    clipped_norm=2.0,
    loss=7.0,
)


def test_the_line_that_scripts_parse() -> None:
    line = STATS.line("  ", "bleu 1.00")
    assert line.startswith("  step 200 lr 0.25 step-time 0.12s wps 8.12K ppl 12.35 gN 3.46 bleu 1.00, ")
    assert Stats(200).line("# Final, ", "dev ppl 2.00").startswith("# Final, step 200 dev ppl 2.00, ")


@pytest.mark.pictures
def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = Outputs(str(tmp_path / "out"), 100, 300)
    outputs.say("hello")
    outputs.stepped(150)
    outputs.stats(STATS, "bleu 1.00")
    outputs.scores(200, {"dev_bleu": 4.0})
    png = heatmap(["a"], ["b"], np.ones([1, 1]))
    outputs.picture(200, "attention_images", lambda: png)
    outputs.picture(200, "none", lambda: None)
    outputs.close()
    written = {re.sub(r"\d+$", "", path.name) for path in (tmp_path / "out").iterdir()}
    assert written >= {"log_", "train_log", "history.jsonl"}
    log = next((tmp_path / "out").glob("log_*")).read_text()
    assert log == capsys.readouterr().out
    assert log.startswith("hello\n  step 200 lr")
    events = next((tmp_path / "out" / "train_log").iterdir())
    summaries = [
        (event.step, value)
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    ]
    values = {value.tag: (step, round(value.simple_value, 3)) for step, value in summaries}
    pictures = {value.tag: value.image.encoded_image_string for _, value in summaries if value.HasField("image")}
    assert pictures.keys() == {"attention_images", "learning_curve"} and pictures["attention_images"] == png
    assert values["train_ppl"] == (200, 12.345)
    assert values["clipped_gradient"] == (200, 2.0)
    assert values["dev_bleu"] == (200, 4.0)


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="file/out"):
        Outputs(str(tmp_path / "file" / "out"), 0, 1)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_refuses_does_so_before_the_history_is_cut(tmp_path: Path) -> None:
    (tmp_path / "train_log").write_text("mine")
    (tmp_path / "history.jsonl").write_text('{"step": 5}\n')
    with pytest.raises(InputError, match="train_log"):
        Outputs(str(tmp_path), 0, 1)
    assert (tmp_path / "history.jsonl").read_text() == '{"step": 5}\n'


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = Outputs(str(tmp_path), 0, 300)
    outputs.say("hello")
    log = next(tmp_path.glob("log_*"))
    for file in (log, tmp_path / "history.jsonl"):
        file.unlink()
        file.symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"log_\d+: cannot be written \(No space left.*free or choose"):
        outputs.say("hello")
    with pytest.raises(InputError, match=r"history.jsonl: cannot be written \(No space left.*free or choose"):
        outputs.scores(1, {"dev_bleu": 4.0})

    def flush(writer: object) -> None:
        raise RuntimeError("events.out; No space left on device\n\tFailed to flush 1 events")

    monkeypatch.setattr(tf.compat.v1.summary.FileWriter, "flush", flush)
    with pytest.raises(InputError, match=r"train_log: cannot be written \(events.out; No space .*free or choose"):
        outputs.scores(1, {"dev_bleu": 4.0})


def test_other_ranks_tell_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = RunOutputs()
    outputs.say("hello")
    outputs.stepped(1)
    outputs.stats(STATS, "")
    outputs.scores(1, {})
    outputs.picture(1, "attention_images", lambda: pytest.fail("drawn in vain"))
    outputs.close()
    assert capsys.readouterr().out == ""
