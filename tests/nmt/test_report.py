"""nmt.report: one page of a run, which a browser shows without an error."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nmt.report import main
from nmt.reporting.charts import Series, chart
from nmt.reporting.run_facts import starts_of

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class Page(html.parser.HTMLParser):
    """The text of a page, and whether each element is closed."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def written(directory: Path, *flags: str) -> str:
    assert main(["report", str(directory), *flags]) == 0
    return (directory / "report.html").read_text()


def test_a_page_has_what_the_run_has_done(raw_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(raw_run / "run")
    assert capsys.readouterr().out.splitlines()[-1] == f"# {raw_run}/run/report.html"
    page = Page(text)
    assert page.open == []
    for title in ("Scores", "Curves", "Ranks and time", "Translations", "Attention", "Settings"):
        assert f"<h2>{title}</h2>" in text
    said = page.text
    assert "dev_sacrebleu" in said and "learning_rate 0.01 1.0" in said and "vocab_prefix" in said
    assert re.search(r"\b1 32 sentences 0 to 80 ", said), "one start: ranks, batch and steps"
    sample = (raw_run / "dev.en").read_text().splitlines()
    assert sum(line in said for line in sample) >= 5, "raw sentences"
    assert text.count("<figure>") >= 5 and text.count("class=attention") == 3
    assert "@@" not in text.split("<h2>Attention")[0]
    assert not re.search(r"<script|src=\"(?!data:)|https?://", text), "self-contained"


def test_several_runs_stand_next_to_each_other(raw_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other <run>"
    shutil.copytree(raw_run / "run", other)
    hparams = json.loads((other / "hparams").read_text())
    (other / "hparams").write_text(json.dumps(hparams | {"dropout": 0.75}))
    (other / "output_dev").write_text("".join(f"<b>{k}</b>\n" for k in range(40)))
    target = tmp_path / "page.html"
    assert main(["report", f"{raw_run}/run", str(other), "--output", str(target), "--noattention"]) == 0
    page = Page(target.read_text())
    assert "Where the runs differ option" in page.text and "dropout 0.2 0.75 0.2" in page.text
    assert "<b>1</b>" in page.text and "other <run>" in page.text, "text is text, and no markup"
    assert "<h2>Attention" not in target.read_text()


def test_paths_are_relative_to_where_the_training_was_started(
    raw_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs/one"
    shutil.copytree(raw_run / "run", run)
    (tmp_path / "data").symlink_to(raw_run / "data")
    hparams = json.loads((run / "hparams").read_text())
    (run / "hparams").write_text(json.dumps(hparams | {"dev_prefix": "data/dev", "vocab_prefix": "data/vocab"}))
    monkeypatch.chdir("/")
    assert written(run).count("class=attention") == 3 and capsys.readouterr().err == ""
    (run / "translate.ckpt-80.index").unlink()
    assert written(run).count("class=attention") == 0
    assert capsys.readouterr().err.startswith("report: pictures of attention are left out: ")
    (run / "output_dev").write_bytes(b"\xff")
    assert "translations are not where the run had them" in Page(written(run)).text
    assert "runs/one are left out: " in (told := capsys.readouterr().err) and "output_dev, line 1: not UTF-8" in told


def test_texts_that_are_gone(raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page then has no sentences, and says so. So has the page of a run that has just begun."""
    run = tmp_path / "run"
    shutil.copytree(raw_run / "run", run)
    hparams = json.loads((run / "hparams").read_text())
    (run / "hparams").write_text(json.dumps(hparams | {"dev_prefix": f"{tmp_path}/none"}))
    assert "translations are not where the run had them" in Page(written(run)).text
    assert "are left out: " in (told := capsys.readouterr().err) and "/none.en: cannot be read" in told
    (run / "history.jsonl").write_text('{"step": 0, "dev_ppl": 12.0}\n{"step": 0, "dev_bleu": NaN}\n')
    assert "12.00" in Page(written(run)).text
    assert main(["report", str(run), f"--output={run}/hparams"]) == 1
    assert "is also an input and would be lost" in capsys.readouterr().err
    (run / "history.jsonl").write_text('{"step": 0, "dev_ppl": "12"}\n')
    assert main(["report", str(run)]) == 1
    assert "history.jsonl: dev_ppl is '12' in step 0, and no number: correct" in capsys.readouterr().err


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_a_browser_shows_it_without_an_error(raw_run: Path, tmp_path: Path) -> None:
    written(raw_run / "run")
    address = (raw_run / "run/report.html").as_uri()
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}/profile",
        "--enable-logging=stderr", "--virtual-time-budget=5000",
    ]  # fmt: skip
    done = subprocess.run(
        [str(BROWSER), *flags, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and "<h2>Settings</h2>" in done.stdout, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    picture = tmp_path / "page.png"
    subprocess.run(
        [str(BROWSER), *flags, f"--screenshot={picture}", "--window-size=1280,2400", address],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    assert picture.stat().st_size > 20_000


def test_starts_of_a_history() -> None:
    entries: list[dict[str, Any]] = [
        {"step": 0, "started": 100.0, "ranks": 2, "batch": "64 sentences"},
        {"step": 0, "stood_still": 3.0, "time": 104.0},
        {"step": 10, "words_per_second": 50.0, "time": 110.0},
        {"step": 20, "words_per_second": 70.0, "time": 120.0},
        {"step": 20, "dev_bleu": 1.0},
        {"step": 20, "started": 500.0, "ranks": 1, "batch": "32 sentences"},
        {"step": 20, "stood_still": 1.5, "time": 502.0},
    ]
    first, second = starts_of(entries)
    assert (first.ranks, first.last_step, first.seconds, first.stood_still, first.words_per_second) == (
        2,
        20,
        20,
        3,
        60,
    )
    assert (second.step, second.last_step, second.seconds, second.stood_still) == (20, 20, 2, 1.5)
    assert starts_of([{"step": 5, "train_ppl": 3.0}]) == []


def test_charts_leave_out_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    infinite = [(0, float("inf")), (1, float("nan"))]
    assert chart("a", [Series("b", infinite)]) == "" == chart("a", [Series("b", [(1, 0.0)])], log=True)
    drawn = chart("a < b", [Series("one $", [(3, 5.0)]), Series("_two", [*infinite, (2, 7.0)], 1, True)])
    assert "a &lt; b" in drawn and "base64" in drawn
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert chart("a", [Series("b", [(3, 5.0)])]) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing --model"),
        ([","], "--model=, names no run: give the out_dir of a training"),
        (["none"], "none/hparams does not exist: give the out_dir of a training"),
        (["empty"], "history.jsonl has no figures of a training"),
        (["empty", "--seed=-1"], "--seed=-1 is not allowed"),
        (["empty", "--output=empty/none/page.html"], "history.jsonl has no figures"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/hparams").write_text("{}")
    assert main(["report", *arguments]) == 1
    told = capsys.readouterr().err
    assert told.startswith("report: ") and message in told and len(told.splitlines()) == 1, told
